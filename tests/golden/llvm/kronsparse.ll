; Kronecker-sparse tile 2x2 vectors of 4 groups of 2 f32

define void @km(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %p1 = getelementptr i64, ptr %integers, i64 0
  %v2 = load i64, ptr %p1, align 8
  %p3 = getelementptr i64, ptr %integers, i64 1
  %v4 = load i64, ptr %p3, align 8
  %p5 = getelementptr i64, ptr %integers, i64 2
  %v6 = load i64, ptr %p5, align 8
  %p7 = getelementptr i64, ptr %integers, i64 3
  %v8 = load i64, ptr %p7, align 8
  %p9 = getelementptr i64, ptr %integers, i64 4
  %v10 = load i64, ptr %p9, align 8
  %p11 = getelementptr i64, ptr %integers, i64 5
  %v12 = load i64, ptr %p11, align 8
  %p13 = getelementptr i64, ptr %integers, i64 6
  %v14 = load i64, ptr %p13, align 8
  %p15 = getelementptr i64, ptr %integers, i64 7
  %v16 = load i64, ptr %p15, align 8
  %p17 = getelementptr i64, ptr %integers, i64 8
  %v18 = load i64, ptr %p17, align 8
  %p19 = getelementptr i64, ptr %integers, i64 9
  %v20 = load i64, ptr %p19, align 8
  %p21 = getelementptr i64, ptr %integers, i64 10
  %v22 = load i64, ptr %p21, align 8
  %p23 = getelementptr i64, ptr %integers, i64 11
  %v24 = load i64, ptr %p23, align 8
  %p25 = getelementptr i64, ptr %integers, i64 12
  %v26 = load i64, ptr %p25, align 8
  %p27 = getelementptr i64, ptr %integers, i64 13
  %v28 = load i64, ptr %p27, align 8
  %p29 = getelementptr i64, ptr %integers, i64 14
  %v30 = load i64, ptr %p29, align 8
  %p31 = getelementptr i64, ptr %integers, i64 15
  %v32 = load i64, ptr %p31, align 8
  %p33 = getelementptr i64, ptr %integers, i64 16
  %v34 = load i64, ptr %p33, align 8
  %p35 = getelementptr i64, ptr %integers, i64 17
  %v36 = load i64, ptr %p35, align 8
  %p37 = getelementptr i64, ptr %integers, i64 18
  %v38 = load i64, ptr %p37, align 8
  %p39 = getelementptr i64, ptr %integers, i64 19
  %v40 = load i64, ptr %p39, align 8
  %p41 = getelementptr i64, ptr %integers, i64 20
  %v42 = load i64, ptr %p41, align 8
  %p43 = getelementptr i64, ptr %integers, i64 21
  %v44 = load i64, ptr %p43, align 8
  %p45 = getelementptr i64, ptr %integers, i64 22
  %v46 = load i64, ptr %p45, align 8
  %p47 = getelementptr i64, ptr %integers, i64 23
  %v48 = load i64, ptr %p47, align 8
  %p49 = getelementptr i64, ptr %integers, i64 24
  %v50 = load i64, ptr %p49, align 8
  %p51 = getelementptr i64, ptr %integers, i64 25
  %v52 = load i64, ptr %p51, align 8
  %p53 = getelementptr i64, ptr %integers, i64 26
  %v54 = load i64, ptr %p53, align 8
  %p55 = getelementptr i64, ptr %integers, i64 27
  %v56 = load i64, ptr %p55, align 8
  %p57 = getelementptr i64, ptr %integers, i64 28
  %v58 = load i64, ptr %p57, align 8
  %p59 = getelementptr ptr, ptr %pointers, i64 0
  %v60 = load ptr, ptr %p59, align 8
  %p61 = getelementptr ptr, ptr %pointers, i64 1
  %v62 = load ptr, ptr %p61, align 8
  %p63 = getelementptr ptr, ptr %pointers, i64 2
  %v64 = load ptr, ptr %p63, align 8
  %p65 = getelementptr ptr, ptr %pointers, i64 3
  %v66 = load ptr, ptr %p65, align 8
  %v67 = add nsw i64 %v8, 7
  %v68 = sdiv i64 %v67, 8
  %v69 = sub nsw i64 %v14, 1
  %v70 = add nsw i64 %v68, %v69
  %v71 = sdiv i64 %v70, %v14
  %v72 = icmp ne i64 %v18, 0
  %v73 = icmp ne i64 %v20, 0
  %v74 = ptrtoint ptr %scratch to i64
  %v75 = add nsw i64 %v74, 63
  %v76 = and i64 %v75, -64
  %v77 = inttoptr i64 %v76 to ptr
  %v78 = mul nsw i64 %v16, 8
  %p79 = getelementptr float, ptr %v77, i64 %v78
  br label %head80
head80:
  %i83 = phi i64 [ %begin, %entry ], [ %v163, %done121 ]
  %v84 = icmp slt i64 %i83, %end
  br i1 %v84, label %body81, label %done82
body81:
  %v85 = srem i64 %i83, %v71
  %v86 = mul nsw i64 %v85, %v14
  %v87 = sdiv i64 %i83, %v71
  %v88 = srem i64 %v87, %v2
  %v89 = sdiv i64 %v88, %v4
  %v90 = srem i64 %v88, %v4
  %v91 = mul nsw i64 %v89, %v22
  %v92 = mul nsw i64 %v90, %v24
  %v93 = add nsw i64 %v91, %v92
  %v94 = mul nsw i64 %v89, %v30
  %v95 = mul nsw i64 %v90, %v32
  %v96 = add nsw i64 %v94, %v95
  %v97 = mul nsw i64 %v89, %v42
  %v98 = mul nsw i64 %v90, %v44
  %v99 = add nsw i64 %v97, %v98
  %v100 = mul nsw i64 %v89, %v52
  %v101 = mul nsw i64 %v90, %v54
  %v102 = add nsw i64 %v100, %v101
  %v103 = sdiv i64 %v87, %v2
  %v104 = mul nsw i64 %v103, %v12
  %v105 = sub nsw i64 %v6, %v104
  %v106 = call i64 @llvm.smin.i64(i64 %v12, i64 %v105)
  %v107 = add nsw i64 %v86, %v14
  %v108 = call i64 @llvm.smin.i64(i64 %v68, i64 %v107)
  %v109 = mul nsw i64 %v104, %v26
  %p110 = getelementptr float, ptr %v60, i64 %v93
  %p111 = getelementptr float, ptr %p110, i64 %v109
  %p112 = getelementptr float, ptr %v62, i64 %v96
  %v113 = mul nsw i64 %v104, %v46
  %p114 = getelementptr float, ptr %v64, i64 %v99
  %p115 = getelementptr float, ptr %p114, i64 %v113
  %v116 = mul nsw i64 %v104, %v56
  %p117 = getelementptr float, ptr %v66, i64 %v102
  %p118 = getelementptr float, ptr %p117, i64 %v116
  br label %head119
head119:
  %i122 = phi i64 [ 0, %body81 ], [ %v162, %done141 ]
  %v123 = icmp slt i64 %i122, %v10
  br i1 %v123, label %body120, label %done121
body120:
  %v124 = sub nsw i64 %v10, %i122
  %v125 = call i64 @llvm.smin.i64(i64 %v16, i64 %v124)
  %v126 = mul nsw i64 %i122, %v28
  %p127 = getelementptr float, ptr %p111, i64 %v126
  br i1 %v72, label %yes128, label %done129
yes128:
  call fastcc void @pack_a(ptr %p79, ptr %p127, i64 %v106, i64 %v125, i64 %v26, i64 %v28)
  br label %done129
done129:
  %v130 = select i1 %v72, ptr %p79, ptr %p127
  %v131 = mul nsw i64 %v125, 4
  %v132 = mul nsw i64 %v26, 2
  %v133 = select i1 %v72, i64 %v131, i64 %v132
  %v134 = select i1 %v72, i64 2, i64 %v26
  %v135 = select i1 %v72, i64 4, i64 %v28
  %v136 = select i1 %v73, i64 8, i64 %v34
  %v137 = select i1 %v73, i64 4, i64 %v38
  %v138 = icmp eq i64 %i122, 0
  br label %head139
head139:
  %i142 = phi i64 [ %v86, %done129 ], [ %v161, %done159 ]
  %v143 = icmp slt i64 %i142, %v108
  br i1 %v143, label %body140, label %done141
body140:
  %v144 = mul nsw i64 %i142, 8
  %v145 = sub nsw i64 %v8, %v144
  %v146 = mul nsw i64 %i122, %v34
  %v147 = mul nsw i64 %i142, %v40
  %p148 = getelementptr float, ptr %p112, i64 %v146
  %p149 = getelementptr float, ptr %p148, i64 %v147
  br i1 %v73, label %yes150, label %done151
yes150:
  call fastcc void @pack(ptr %v77, ptr %p149, i64 %v125, i64 %v34, i64 %v36, i64 %v145)
  br label %done151
done151:
  %v152 = select i1 %v73, ptr %v77, ptr %p149
  %v153 = mul nsw i64 %i142, %v50
  %p154 = getelementptr float, ptr %p115, i64 %v153
  %v155 = mul nsw i64 %i142, %v58
  %p156 = getelementptr float, ptr %p118, i64 %v155
  %v160 = icmp sge i64 %v145, 8
  br i1 %v160, label %whole157, label %part158
whole157:
  call fastcc void @panel_whole(ptr %v130, ptr %v152, ptr %p154, ptr %p156, i64 %v106, i64 %v125, i64 %v133, i64 %v134, i64 %v135, i64 %v136, i64 %v137, i64 %v46, i64 %v48, i64 %v56, i64 %v145, i1 %v138)
  br label %done159
part158:
  call fastcc void @panel_masked(ptr %v130, ptr %v152, ptr %p154, ptr %p156, i64 %v106, i64 %v125, i64 %v133, i64 %v134, i64 %v135, i64 %v136, i64 %v137, i64 %v46, i64 %v48, i64 %v56, i64 %v145, i1 %v138)
  br label %done159
done159:
  %v161 = add nsw i64 %i142, 1
  br label %head139
done141:
  %v162 = add nsw i64 %i122, %v16
  br label %head119
done121:
  %v163 = add nsw i64 %i83, 1
  br label %head80
done82:
  ret void
}

define internal fastcc void @panel_whole(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %p, i64 %r, i64 %a_tile, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh) noinline {
entry:
  %v1 = sub nsw i64 %p, 0
  %v2 = sdiv i64 %v1, 2
  %v3 = mul nsw i64 %v2, 2
  %v4 = add nsw i64 0, %v3
  br label %head5
head5:
  %i8 = phi i64 [ 0, %entry ], [ %v20, %body6 ]
  %v9 = icmp slt i64 %i8, %v4
  br i1 %v9, label %body6, label %done7
body6:
  %v10 = sdiv i64 %i8, 2
  %v11 = srem i64 %i8, 2
  %v12 = mul nsw i64 %v10, %a_tile
  %v13 = mul nsw i64 %v11, %a_p
  %p14 = getelementptr float, ptr %a, i64 %v12
  %p15 = getelementptr float, ptr %p14, i64 %v13
  %v16 = mul nsw i64 %i8, %c_p
  %p17 = getelementptr float, ptr %c, i64 %v16
  %v18 = mul nsw i64 %i8, %bias_p
  %p19 = getelementptr float, ptr %bias, i64 %v18
  call fastcc void @tile_2_whole(ptr %p15, ptr %b, ptr %p17, ptr %p19, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh)
  %v20 = add nsw i64 %i8, 2
  br label %head5
done7:
  %v21 = sub nsw i64 %p, %v4
  %v22 = sdiv i64 %v21, 1
  %v23 = mul nsw i64 %v22, 1
  %v24 = add nsw i64 %v4, %v23
  br label %head25
head25:
  %i28 = phi i64 [ %v4, %done7 ], [ %v40, %body26 ]
  %v29 = icmp slt i64 %i28, %v24
  br i1 %v29, label %body26, label %done27
body26:
  %v30 = sdiv i64 %i28, 2
  %v31 = srem i64 %i28, 2
  %v32 = mul nsw i64 %v30, %a_tile
  %v33 = mul nsw i64 %v31, %a_p
  %p34 = getelementptr float, ptr %a, i64 %v32
  %p35 = getelementptr float, ptr %p34, i64 %v33
  %v36 = mul nsw i64 %i28, %c_p
  %p37 = getelementptr float, ptr %c, i64 %v36
  %v38 = mul nsw i64 %i28, %bias_p
  %p39 = getelementptr float, ptr %bias, i64 %v38
  call fastcc void @tile_1_whole(ptr %p35, ptr %b, ptr %p37, ptr %p39, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh)
  %v40 = add nsw i64 %i28, 1
  br label %head25
done27:
  ret void
}

define internal fastcc void @panel_masked(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %p, i64 %r, i64 %a_tile, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh) noinline {
entry:
  %v1 = sub nsw i64 %p, 0
  %v2 = sdiv i64 %v1, 2
  %v3 = mul nsw i64 %v2, 2
  %v4 = add nsw i64 0, %v3
  br label %head5
head5:
  %i8 = phi i64 [ 0, %entry ], [ %v20, %body6 ]
  %v9 = icmp slt i64 %i8, %v4
  br i1 %v9, label %body6, label %done7
body6:
  %v10 = sdiv i64 %i8, 2
  %v11 = srem i64 %i8, 2
  %v12 = mul nsw i64 %v10, %a_tile
  %v13 = mul nsw i64 %v11, %a_p
  %p14 = getelementptr float, ptr %a, i64 %v12
  %p15 = getelementptr float, ptr %p14, i64 %v13
  %v16 = mul nsw i64 %i8, %c_p
  %p17 = getelementptr float, ptr %c, i64 %v16
  %v18 = mul nsw i64 %i8, %bias_p
  %p19 = getelementptr float, ptr %bias, i64 %v18
  call fastcc void @tile_2_masked(ptr %p15, ptr %b, ptr %p17, ptr %p19, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh)
  %v20 = add nsw i64 %i8, 2
  br label %head5
done7:
  %v21 = sub nsw i64 %p, %v4
  %v22 = sdiv i64 %v21, 1
  %v23 = mul nsw i64 %v22, 1
  %v24 = add nsw i64 %v4, %v23
  br label %head25
head25:
  %i28 = phi i64 [ %v4, %done7 ], [ %v40, %body26 ]
  %v29 = icmp slt i64 %i28, %v24
  br i1 %v29, label %body26, label %done27
body26:
  %v30 = sdiv i64 %i28, 2
  %v31 = srem i64 %i28, 2
  %v32 = mul nsw i64 %v30, %a_tile
  %v33 = mul nsw i64 %v31, %a_p
  %p34 = getelementptr float, ptr %a, i64 %v32
  %p35 = getelementptr float, ptr %p34, i64 %v33
  %v36 = mul nsw i64 %i28, %c_p
  %p37 = getelementptr float, ptr %c, i64 %v36
  %v38 = mul nsw i64 %i28, %bias_p
  %p39 = getelementptr float, ptr %bias, i64 %v38
  call fastcc void @tile_1_masked(ptr %p35, ptr %b, ptr %p37, ptr %p39, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh)
  %v40 = add nsw i64 %i28, 1
  br label %head25
done27:
  ret void
}

define internal fastcc void @tile_2_whole(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh) noinline {
entry:
  %v1 = mul nsw i64 %c_p, 0
  %p2 = getelementptr float, ptr %c, i64 %v1
  %v3 = mul nsw i64 %c_p, 1
  %p4 = getelementptr float, ptr %c, i64 %v3
  br i1 %fresh, label %fresh5, label %later6
fresh5:
  %v8 = load <4 x float>, ptr %bias, align 4
  %p9 = getelementptr float, ptr %bias, i64 4
  %v10 = load <4 x float>, ptr %p9, align 4
  br label %done7
later6:
  %v11 = load <4 x float>, ptr %p2, align 4
  %p12 = getelementptr float, ptr %p2, i64 4
  %v13 = load <4 x float>, ptr %p12, align 4
  %v14 = load <4 x float>, ptr %p4, align 4
  %p15 = getelementptr float, ptr %p4, i64 4
  %v16 = load <4 x float>, ptr %p15, align 4
  br label %done7
done7:
  %v17 = phi <4 x float> [ %v8, %fresh5 ], [ %v11, %later6 ]
  %v18 = phi <4 x float> [ %v10, %fresh5 ], [ %v13, %later6 ]
  %v19 = phi <4 x float> [ %v8, %fresh5 ], [ %v14, %later6 ]
  %v20 = phi <4 x float> [ %v10, %fresh5 ], [ %v16, %later6 ]
  %v21 = mul nsw i64 %a_p, 0
  %p22 = getelementptr float, ptr %a, i64 %v21
  %v23 = mul nsw i64 %a_p, 1
  %p24 = getelementptr float, ptr %a, i64 %v23
  br label %head25
head25:
  %i28 = phi i64 [ 0, %done7 ], [ %v50, %body26 ]
  %acc29 = phi <4 x float> [ %v17, %done7 ], [ %v43, %body26 ]
  %acc30 = phi <4 x float> [ %v18, %done7 ], [ %v44, %body26 ]
  %acc31 = phi <4 x float> [ %v19, %done7 ], [ %v48, %body26 ]
  %acc32 = phi <4 x float> [ %v20, %done7 ], [ %v49, %body26 ]
  %v33 = icmp slt i64 %i28, %r
  br i1 %v33, label %body26, label %done27
body26:
  %v34 = mul nsw i64 %i28, %b_r
  %p35 = getelementptr float, ptr %b, i64 %v34
  %v36 = load <4 x float>, ptr %p35, align 4
  %p37 = getelementptr float, ptr %p35, i64 4
  %v38 = load <4 x float>, ptr %p37, align 4
  %v39 = mul nsw i64 %i28, %a_r
  %p40 = getelementptr float, ptr %p22, i64 %v39
  %v41 = load <2 x float>, ptr %p40, align 4
  %v42 = shufflevector <2 x float> %v41, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v43 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v42, <4 x float> %v36, <4 x float> %acc29)
  %v44 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v42, <4 x float> %v38, <4 x float> %acc30)
  %p45 = getelementptr float, ptr %p24, i64 %v39
  %v46 = load <2 x float>, ptr %p45, align 4
  %v47 = shufflevector <2 x float> %v46, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v48 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v47, <4 x float> %v36, <4 x float> %acc31)
  %v49 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v47, <4 x float> %v38, <4 x float> %acc32)
  %v50 = add nsw i64 %i28, 1
  br label %head25
done27:
  store <4 x float> %acc29, ptr %p2, align 4
  %p51 = getelementptr float, ptr %p2, i64 4
  store <4 x float> %acc30, ptr %p51, align 4
  store <4 x float> %acc31, ptr %p4, align 4
  %p52 = getelementptr float, ptr %p4, i64 4
  store <4 x float> %acc32, ptr %p52, align 4
  ret void
}

define internal fastcc void @tile_2_masked(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh) noinline {
entry:
  %v1 = sub nsw i64 %lanes, 0
  %v2 = call i64 @llvm.smin.i64(i64 %v1, i64 4)
  %v3 = call i64 @llvm.smax.i64(i64 -1, i64 %v2)
  %v4 = trunc i64 %v3 to i32
  %v5 = insertelement <4 x i32> poison, i32 %v4, i64 0
  %v6 = shufflevector <4 x i32> %v5, <4 x i32> poison, <4 x i32> zeroinitializer
  %v7 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v6
  %v8 = sub nsw i64 %lanes, 4
  %v9 = call i64 @llvm.smin.i64(i64 %v8, i64 4)
  %v10 = call i64 @llvm.smax.i64(i64 -1, i64 %v9)
  %v11 = trunc i64 %v10 to i32
  %v12 = insertelement <4 x i32> poison, i32 %v11, i64 0
  %v13 = shufflevector <4 x i32> %v12, <4 x i32> poison, <4 x i32> zeroinitializer
  %v14 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v13
  %v15 = mul nsw i64 %c_p, 0
  %p16 = getelementptr float, ptr %c, i64 %v15
  %v17 = mul nsw i64 %c_p, 1
  %p18 = getelementptr float, ptr %c, i64 %v17
  br i1 %fresh, label %fresh19, label %later20
fresh19:
  %v22 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %bias, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p23 = getelementptr float, ptr %bias, i64 4
  %v24 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p23, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  br label %done21
later20:
  %v25 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p16, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p26 = getelementptr float, ptr %p16, i64 4
  %v27 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p26, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %v28 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p18, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p29 = getelementptr float, ptr %p18, i64 4
  %v30 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p29, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  br label %done21
done21:
  %v31 = phi <4 x float> [ %v22, %fresh19 ], [ %v25, %later20 ]
  %v32 = phi <4 x float> [ %v24, %fresh19 ], [ %v27, %later20 ]
  %v33 = phi <4 x float> [ %v22, %fresh19 ], [ %v28, %later20 ]
  %v34 = phi <4 x float> [ %v24, %fresh19 ], [ %v30, %later20 ]
  %v35 = mul nsw i64 %a_p, 0
  %p36 = getelementptr float, ptr %a, i64 %v35
  %v37 = mul nsw i64 %a_p, 1
  %p38 = getelementptr float, ptr %a, i64 %v37
  br label %head39
head39:
  %i42 = phi i64 [ 0, %done21 ], [ %v64, %body40 ]
  %acc43 = phi <4 x float> [ %v31, %done21 ], [ %v57, %body40 ]
  %acc44 = phi <4 x float> [ %v32, %done21 ], [ %v58, %body40 ]
  %acc45 = phi <4 x float> [ %v33, %done21 ], [ %v62, %body40 ]
  %acc46 = phi <4 x float> [ %v34, %done21 ], [ %v63, %body40 ]
  %v47 = icmp slt i64 %i42, %r
  br i1 %v47, label %body40, label %done41
body40:
  %v48 = mul nsw i64 %i42, %b_r
  %p49 = getelementptr float, ptr %b, i64 %v48
  %v50 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p49, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p51 = getelementptr float, ptr %p49, i64 4
  %v52 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p51, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %v53 = mul nsw i64 %i42, %a_r
  %p54 = getelementptr float, ptr %p36, i64 %v53
  %v55 = load <2 x float>, ptr %p54, align 4
  %v56 = shufflevector <2 x float> %v55, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v57 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v56, <4 x float> %v50, <4 x float> %acc43)
  %v58 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v56, <4 x float> %v52, <4 x float> %acc44)
  %p59 = getelementptr float, ptr %p38, i64 %v53
  %v60 = load <2 x float>, ptr %p59, align 4
  %v61 = shufflevector <2 x float> %v60, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v62 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v61, <4 x float> %v50, <4 x float> %acc45)
  %v63 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v61, <4 x float> %v52, <4 x float> %acc46)
  %v64 = add nsw i64 %i42, 1
  br label %head39
done41:
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc43, ptr %p16, i32 4, <4 x i1> %v7)
  %p65 = getelementptr float, ptr %p16, i64 4
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc44, ptr %p65, i32 4, <4 x i1> %v14)
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc45, ptr %p18, i32 4, <4 x i1> %v7)
  %p66 = getelementptr float, ptr %p18, i64 4
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc46, ptr %p66, i32 4, <4 x i1> %v14)
  ret void
}

define internal fastcc void @tile_1_whole(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh) noinline {
entry:
  %v1 = mul nsw i64 %c_p, 0
  %p2 = getelementptr float, ptr %c, i64 %v1
  br i1 %fresh, label %fresh3, label %later4
fresh3:
  %v6 = load <4 x float>, ptr %bias, align 4
  %p7 = getelementptr float, ptr %bias, i64 4
  %v8 = load <4 x float>, ptr %p7, align 4
  br label %done5
later4:
  %v9 = load <4 x float>, ptr %p2, align 4
  %p10 = getelementptr float, ptr %p2, i64 4
  %v11 = load <4 x float>, ptr %p10, align 4
  br label %done5
done5:
  %v12 = phi <4 x float> [ %v6, %fresh3 ], [ %v9, %later4 ]
  %v13 = phi <4 x float> [ %v8, %fresh3 ], [ %v11, %later4 ]
  %v14 = mul nsw i64 %a_p, 0
  %p15 = getelementptr float, ptr %a, i64 %v14
  br label %head16
head16:
  %i19 = phi i64 [ 0, %done5 ], [ %v34, %body17 ]
  %acc20 = phi <4 x float> [ %v12, %done5 ], [ %v32, %body17 ]
  %acc21 = phi <4 x float> [ %v13, %done5 ], [ %v33, %body17 ]
  %v22 = icmp slt i64 %i19, %r
  br i1 %v22, label %body17, label %done18
body17:
  %v23 = mul nsw i64 %i19, %b_r
  %p24 = getelementptr float, ptr %b, i64 %v23
  %v25 = load <4 x float>, ptr %p24, align 4
  %p26 = getelementptr float, ptr %p24, i64 4
  %v27 = load <4 x float>, ptr %p26, align 4
  %v28 = mul nsw i64 %i19, %a_r
  %p29 = getelementptr float, ptr %p15, i64 %v28
  %v30 = load <2 x float>, ptr %p29, align 4
  %v31 = shufflevector <2 x float> %v30, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v32 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v31, <4 x float> %v25, <4 x float> %acc20)
  %v33 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v31, <4 x float> %v27, <4 x float> %acc21)
  %v34 = add nsw i64 %i19, 1
  br label %head16
done18:
  store <4 x float> %acc20, ptr %p2, align 4
  %p35 = getelementptr float, ptr %p2, i64 4
  store <4 x float> %acc21, ptr %p35, align 4
  ret void
}

define internal fastcc void @tile_1_masked(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh) noinline {
entry:
  %v1 = sub nsw i64 %lanes, 0
  %v2 = call i64 @llvm.smin.i64(i64 %v1, i64 4)
  %v3 = call i64 @llvm.smax.i64(i64 -1, i64 %v2)
  %v4 = trunc i64 %v3 to i32
  %v5 = insertelement <4 x i32> poison, i32 %v4, i64 0
  %v6 = shufflevector <4 x i32> %v5, <4 x i32> poison, <4 x i32> zeroinitializer
  %v7 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v6
  %v8 = sub nsw i64 %lanes, 4
  %v9 = call i64 @llvm.smin.i64(i64 %v8, i64 4)
  %v10 = call i64 @llvm.smax.i64(i64 -1, i64 %v9)
  %v11 = trunc i64 %v10 to i32
  %v12 = insertelement <4 x i32> poison, i32 %v11, i64 0
  %v13 = shufflevector <4 x i32> %v12, <4 x i32> poison, <4 x i32> zeroinitializer
  %v14 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v13
  %v15 = mul nsw i64 %c_p, 0
  %p16 = getelementptr float, ptr %c, i64 %v15
  br i1 %fresh, label %fresh17, label %later18
fresh17:
  %v20 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %bias, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p21 = getelementptr float, ptr %bias, i64 4
  %v22 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p21, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  br label %done19
later18:
  %v23 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p16, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p24 = getelementptr float, ptr %p16, i64 4
  %v25 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p24, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  br label %done19
done19:
  %v26 = phi <4 x float> [ %v20, %fresh17 ], [ %v23, %later18 ]
  %v27 = phi <4 x float> [ %v22, %fresh17 ], [ %v25, %later18 ]
  %v28 = mul nsw i64 %a_p, 0
  %p29 = getelementptr float, ptr %a, i64 %v28
  br label %head30
head30:
  %i33 = phi i64 [ 0, %done19 ], [ %v48, %body31 ]
  %acc34 = phi <4 x float> [ %v26, %done19 ], [ %v46, %body31 ]
  %acc35 = phi <4 x float> [ %v27, %done19 ], [ %v47, %body31 ]
  %v36 = icmp slt i64 %i33, %r
  br i1 %v36, label %body31, label %done32
body31:
  %v37 = mul nsw i64 %i33, %b_r
  %p38 = getelementptr float, ptr %b, i64 %v37
  %v39 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p38, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p40 = getelementptr float, ptr %p38, i64 4
  %v41 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p40, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %v42 = mul nsw i64 %i33, %a_r
  %p43 = getelementptr float, ptr %p29, i64 %v42
  %v44 = load <2 x float>, ptr %p43, align 4
  %v45 = shufflevector <2 x float> %v44, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v46 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v45, <4 x float> %v39, <4 x float> %acc34)
  %v47 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v45, <4 x float> %v41, <4 x float> %acc35)
  %v48 = add nsw i64 %i33, 1
  br label %head30
done32:
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc34, ptr %p16, i32 4, <4 x i1> %v7)
  %p49 = getelementptr float, ptr %p16, i64 4
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc35, ptr %p49, i32 4, <4 x i1> %v14)
  ret void
}

define internal fastcc void @pack(ptr noalias %into, ptr noalias %b, i64 %r, i64 %b_r, i64 %b_q, i64 %lanes) noinline {
entry:
  %v1 = sdiv i64 %lanes, 2
  %v2 = call i64 @llvm.smin.i64(i64 4, i64 %v1)
  %v3 = icmp eq i64 %b_q, 2
  %v4 = icmp eq i64 %v2, 4
  %v5 = and i1 %v3, %v4
  br i1 %v5, label %together6, label %apart7
together6:
  br label %head9
head9:
  %i12 = phi i64 [ 0, %together6 ], [ %v22, %body10 ]
  %v13 = icmp slt i64 %i12, %r
  br i1 %v13, label %body10, label %done11
body10:
  %v14 = mul nsw i64 %i12, %b_r
  %p15 = getelementptr float, ptr %b, i64 %v14
  %v16 = mul nsw i64 %i12, 8
  %p17 = getelementptr float, ptr %into, i64 %v16
  %v18 = load <4 x float>, ptr %p15, align 4
  store <4 x float> %v18, ptr %p17, align 4
  %p19 = getelementptr float, ptr %p15, i64 4
  %v20 = load <4 x float>, ptr %p19, align 4
  %p21 = getelementptr float, ptr %p17, i64 4
  store <4 x float> %v20, ptr %p21, align 4
  %v22 = add nsw i64 %i12, 1
  br label %head9
done11:
  br label %done8
apart7:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %apart7 ], [ %v51, %done45 ]
  %v27 = icmp slt i64 %i26, %r
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %b_r
  %p29 = getelementptr float, ptr %b, i64 %v28
  %v30 = mul nsw i64 %i26, 8
  %p31 = getelementptr float, ptr %into, i64 %v30
  br label %head32
head32:
  %i35 = phi i64 [ 0, %body24 ], [ %v42, %body33 ]
  %v36 = icmp slt i64 %i35, %v2
  br i1 %v36, label %body33, label %done34
body33:
  %v37 = mul nsw i64 %i35, %b_q
  %p38 = getelementptr float, ptr %p29, i64 %v37
  %v39 = load <2 x float>, ptr %p38, align 4
  %v40 = mul nsw i64 %i35, 2
  %p41 = getelementptr float, ptr %p31, i64 %v40
  store <2 x float> %v39, ptr %p41, align 4
  %v42 = add nsw i64 %i35, 1
  br label %head32
done34:
  br label %head43
head43:
  %i46 = phi i64 [ %v2, %done34 ], [ %v50, %body44 ]
  %v47 = icmp slt i64 %i46, 4
  br i1 %v47, label %body44, label %done45
body44:
  %v48 = mul nsw i64 %i46, 2
  %p49 = getelementptr float, ptr %p31, i64 %v48
  store <2 x float> zeroinitializer, ptr %p49, align 4
  %v50 = add nsw i64 %i46, 1
  br label %head43
done45:
  %v51 = add nsw i64 %i26, 1
  br label %head23
done25:
  br label %done8
done8:
  ret void
}

define internal fastcc void @pack_a(ptr noalias %into, ptr noalias %a, i64 %p, i64 %r, i64 %a_p, i64 %a_r) noinline {
entry:
  %v1 = mul nsw i64 %r, 4
  %v2 = icmp eq i64 %a_p, 2
  %v3 = sdiv i64 %p, 2
  %v4 = select i1 %v2, i64 %v3, i64 0
  %v5 = add nsw i64 %p, 1
  %v6 = sdiv i64 %v5, 2
  br label %head7
head7:
  %i10 = phi i64 [ 0, %entry ], [ %v51, %done29 ]
  %v11 = icmp slt i64 %i10, %r
  br i1 %v11, label %body8, label %done9
body8:
  %v12 = mul nsw i64 %i10, %a_r
  %p13 = getelementptr float, ptr %a, i64 %v12
  %v14 = mul nsw i64 %i10, 4
  %p15 = getelementptr float, ptr %into, i64 %v14
  br label %head16
head16:
  %i19 = phi i64 [ 0, %body8 ], [ %v26, %body17 ]
  %v20 = icmp slt i64 %i19, %v4
  br i1 %v20, label %body17, label %done18
body17:
  %v21 = mul nsw i64 %i19, 4
  %p22 = getelementptr float, ptr %p13, i64 %v21
  %v23 = load <4 x float>, ptr %p22, align 4
  %v24 = mul nsw i64 %i19, %v1
  %p25 = getelementptr float, ptr %p15, i64 %v24
  store <4 x float> %v23, ptr %p25, align 4
  %v26 = add nsw i64 %i19, 1
  br label %head16
done18:
  br label %head27
head27:
  %i30 = phi i64 [ %v4, %done18 ], [ %v50, %done41 ]
  %v31 = icmp slt i64 %i30, %v6
  br i1 %v31, label %body28, label %done29
body28:
  %v32 = mul nsw i64 %i30, 2
  %v33 = mul nsw i64 %v32, %a_p
  %p34 = getelementptr float, ptr %p13, i64 %v33
  %v35 = mul nsw i64 %i30, %v1
  %p36 = getelementptr float, ptr %p15, i64 %v35
  %v37 = sub nsw i64 %p, %v32
  %v38 = call i64 @llvm.smin.i64(i64 2, i64 %v37)
  br label %head39
head39:
  %i42 = phi i64 [ 0, %body28 ], [ %v49, %body40 ]
  %v43 = icmp slt i64 %i42, %v38
  br i1 %v43, label %body40, label %done41
body40:
  %v44 = mul nsw i64 %i42, %a_p
  %p45 = getelementptr float, ptr %p34, i64 %v44
  %v46 = load <2 x float>, ptr %p45, align 4
  %v47 = mul nsw i64 %i42, 2
  %p48 = getelementptr float, ptr %p36, i64 %v47
  store <2 x float> %v46, ptr %p48, align 4
  %v49 = add nsw i64 %i42, 1
  br label %head39
done41:
  %v50 = add nsw i64 %i30, 1
  br label %head27
done29:
  %v51 = add nsw i64 %i10, 1
  br label %head7
done9:
  ret void
}
