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
  %p59 = getelementptr i64, ptr %integers, i64 29
  %v60 = load i64, ptr %p59, align 8
  %p61 = getelementptr ptr, ptr %pointers, i64 0
  %v62 = load ptr, ptr %p61, align 8
  %p63 = getelementptr ptr, ptr %pointers, i64 1
  %v64 = load ptr, ptr %p63, align 8
  %p65 = getelementptr ptr, ptr %pointers, i64 2
  %v66 = load ptr, ptr %p65, align 8
  %p67 = getelementptr ptr, ptr %pointers, i64 3
  %v68 = load ptr, ptr %p67, align 8
  %v69 = add nsw i64 %v8, 7
  %v70 = sdiv i64 %v69, 8
  %v71 = sub nsw i64 %v14, 1
  %v72 = add nsw i64 %v70, %v71
  %v73 = sdiv i64 %v72, %v14
  %v74 = icmp ne i64 %v18, 0
  %v75 = icmp ne i64 %v20, 0
  %v76 = ptrtoint ptr %scratch to i64
  %v77 = add nsw i64 %v76, 63
  %v78 = and i64 %v77, -64
  %v79 = inttoptr i64 %v78 to ptr
  %v80 = mul nsw i64 %v16, 8
  %p81 = getelementptr float, ptr %v79, i64 %v80
  br label %head82
head82:
  %i85 = phi i64 [ %begin, %entry ], [ %v166, %done123 ]
  %v86 = icmp slt i64 %i85, %end
  br i1 %v86, label %body83, label %done84
body83:
  %v87 = srem i64 %i85, %v73
  %v88 = mul nsw i64 %v87, %v14
  %v89 = sdiv i64 %i85, %v73
  %v90 = srem i64 %v89, %v2
  %v91 = sdiv i64 %v90, %v4
  %v92 = srem i64 %v90, %v4
  %v93 = mul nsw i64 %v91, %v22
  %v94 = mul nsw i64 %v92, %v24
  %v95 = add nsw i64 %v93, %v94
  %v96 = mul nsw i64 %v91, %v30
  %v97 = mul nsw i64 %v92, %v32
  %v98 = add nsw i64 %v96, %v97
  %v99 = mul nsw i64 %v91, %v44
  %v100 = mul nsw i64 %v92, %v46
  %v101 = add nsw i64 %v99, %v100
  %v102 = mul nsw i64 %v91, %v54
  %v103 = mul nsw i64 %v92, %v56
  %v104 = add nsw i64 %v102, %v103
  %v105 = sdiv i64 %v89, %v2
  %v106 = mul nsw i64 %v105, %v12
  %v107 = sub nsw i64 %v6, %v106
  %v108 = call i64 @llvm.smin.i64(i64 %v12, i64 %v107)
  %v109 = add nsw i64 %v88, %v14
  %v110 = call i64 @llvm.smin.i64(i64 %v70, i64 %v109)
  %v111 = mul nsw i64 %v106, %v26
  %p112 = getelementptr float, ptr %v62, i64 %v95
  %p113 = getelementptr float, ptr %p112, i64 %v111
  %p114 = getelementptr float, ptr %v64, i64 %v98
  %v115 = mul nsw i64 %v106, %v48
  %p116 = getelementptr float, ptr %v66, i64 %v101
  %p117 = getelementptr float, ptr %p116, i64 %v115
  %v118 = mul nsw i64 %v106, %v58
  %p119 = getelementptr float, ptr %v68, i64 %v104
  %p120 = getelementptr float, ptr %p119, i64 %v118
  br label %head121
head121:
  %i124 = phi i64 [ 0, %body83 ], [ %v165, %done143 ]
  %v125 = icmp slt i64 %i124, %v10
  br i1 %v125, label %body122, label %done123
body122:
  %v126 = sub nsw i64 %v10, %i124
  %v127 = call i64 @llvm.smin.i64(i64 %v16, i64 %v126)
  %v128 = mul nsw i64 %i124, %v28
  %p129 = getelementptr float, ptr %p113, i64 %v128
  br i1 %v74, label %yes130, label %done131
yes130:
  call fastcc void @pack_a(ptr %p81, ptr %p129, i64 %v108, i64 %v127, i64 %v26, i64 %v28)
  br label %done131
done131:
  %v132 = select i1 %v74, ptr %p81, ptr %p129
  %v133 = mul nsw i64 %v127, 4
  %v134 = mul nsw i64 %v26, 2
  %v135 = select i1 %v74, i64 %v133, i64 %v134
  %v136 = select i1 %v74, i64 2, i64 %v26
  %v137 = select i1 %v74, i64 4, i64 %v28
  %v138 = select i1 %v75, i64 8, i64 %v34
  %v139 = select i1 %v75, i64 4, i64 %v38
  %v140 = icmp eq i64 %i124, 0
  br label %head141
head141:
  %i144 = phi i64 [ %v88, %done131 ], [ %v164, %done162 ]
  %v145 = icmp slt i64 %i144, %v110
  br i1 %v145, label %body142, label %done143
body142:
  %v146 = mul nsw i64 %i144, 8
  %v147 = sub nsw i64 %v8, %v146
  %v148 = mul nsw i64 %i124, %v34
  %v149 = mul nsw i64 %i144, %v40
  %p150 = getelementptr float, ptr %p114, i64 %v148
  %p151 = getelementptr float, ptr %p150, i64 %v149
  br i1 %v75, label %yes152, label %done153
yes152:
  call fastcc void @pack(ptr %v79, ptr %p151, i64 %v127, i64 %v34, i64 %v36, i64 %v147)
  br label %done153
done153:
  %v154 = select i1 %v75, ptr %v79, ptr %p151
  %v155 = mul nsw i64 %i144, %v52
  %p156 = getelementptr float, ptr %p117, i64 %v155
  %v157 = mul nsw i64 %i144, %v60
  %p158 = getelementptr float, ptr %p120, i64 %v157
  %p159 = getelementptr float, ptr %v154, i64 %v40
  %v163 = icmp sge i64 %v147, 8
  br i1 %v163, label %whole160, label %part161
whole160:
  call fastcc void @panel_8_whole(ptr %v132, ptr %v154, ptr %p156, ptr %p158, i64 %v108, i64 %v127, i64 %v135, i64 %v136, i64 %v137, i64 %v138, i64 %v139, i64 %v48, i64 %v50, i64 %v58, i64 %v147, i1 %v140, ptr %p159, i64 %v42)
  br label %done162
part161:
  call fastcc void @panel_8_masked(ptr %v132, ptr %v154, ptr %p156, ptr %p158, i64 %v108, i64 %v127, i64 %v135, i64 %v136, i64 %v137, i64 %v138, i64 %v139, i64 %v48, i64 %v50, i64 %v58, i64 %v147, i1 %v140, ptr %p159, i64 %v42)
  br label %done162
done162:
  %v164 = add nsw i64 %i144, 1
  br label %head141
done143:
  %v165 = add nsw i64 %i124, %v16
  br label %head121
done123:
  %v166 = add nsw i64 %i85, 1
  br label %head82
done84:
  ret void
}

define internal fastcc void @panel_8_whole(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %p, i64 %r, i64 %a_tile, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %next, i64 %step) noinline {
entry:
  %v1 = sub nsw i64 %p, 0
  %v2 = sdiv i64 %v1, 2
  %v3 = mul nsw i64 %v2, 2
  %v4 = add nsw i64 0, %v3
  br label %head5
head5:
  %i8 = phi i64 [ 0, %entry ], [ %v23, %body6 ]
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
  %v20 = mul nsw i64 %v10, %r
  %v21 = mul nsw i64 %v20, %step
  %p22 = getelementptr float, ptr %next, i64 %v21
  call fastcc void @tile_2x8_whole(ptr %p15, ptr %b, ptr %p17, ptr %p19, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %p22, i64 %step)
  %v23 = add nsw i64 %i8, 2
  br label %head5
done7:
  %v24 = sub nsw i64 %p, %v4
  %v25 = sdiv i64 %v24, 1
  %v26 = mul nsw i64 %v25, 1
  %v27 = add nsw i64 %v4, %v26
  br label %head28
head28:
  %i31 = phi i64 [ %v4, %done7 ], [ %v46, %body29 ]
  %v32 = icmp slt i64 %i31, %v27
  br i1 %v32, label %body29, label %done30
body29:
  %v33 = sdiv i64 %i31, 2
  %v34 = srem i64 %i31, 2
  %v35 = mul nsw i64 %v33, %a_tile
  %v36 = mul nsw i64 %v34, %a_p
  %p37 = getelementptr float, ptr %a, i64 %v35
  %p38 = getelementptr float, ptr %p37, i64 %v36
  %v39 = mul nsw i64 %i31, %c_p
  %p40 = getelementptr float, ptr %c, i64 %v39
  %v41 = mul nsw i64 %i31, %bias_p
  %p42 = getelementptr float, ptr %bias, i64 %v41
  %v43 = mul nsw i64 %v33, %r
  %v44 = mul nsw i64 %v43, %step
  %p45 = getelementptr float, ptr %next, i64 %v44
  call fastcc void @tile_1x8_whole(ptr %p38, ptr %b, ptr %p40, ptr %p42, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %p45, i64 %step)
  %v46 = add nsw i64 %i31, 1
  br label %head28
done30:
  ret void
}

define internal fastcc void @tile_2x8_whole(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %next, i64 %step) noinline {
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
  %v21 = icmp sge i64 %r, 64
  br i1 %v21, label %yes22, label %done23
yes22:
  %v24 = mul nsw i64 %c_p, 2
  %p25 = getelementptr float, ptr %p2, i64 %v24
  call void @llvm.prefetch.p0(ptr %p25, i32 1, i32 2, i32 1)
  %v26 = mul nsw i64 %c_p, 2
  %p27 = getelementptr float, ptr %p2, i64 %v26
  %p28 = getelementptr float, ptr %p27, i64 4
  call void @llvm.prefetch.p0(ptr %p28, i32 1, i32 2, i32 1)
  %v29 = mul nsw i64 %c_p, 2
  %p30 = getelementptr float, ptr %p4, i64 %v29
  call void @llvm.prefetch.p0(ptr %p30, i32 1, i32 2, i32 1)
  %v31 = mul nsw i64 %c_p, 2
  %p32 = getelementptr float, ptr %p4, i64 %v31
  %p33 = getelementptr float, ptr %p32, i64 4
  call void @llvm.prefetch.p0(ptr %p33, i32 1, i32 2, i32 1)
  br label %done23
done23:
  %v34 = and i64 %r, -2
  %v35 = mul nsw i64 %a_p, 0
  %p36 = getelementptr float, ptr %a, i64 %v35
  %v37 = mul nsw i64 %a_p, 1
  %p38 = getelementptr float, ptr %a, i64 %v37
  br label %head39
head39:
  %i42 = phi i64 [ 0, %done23 ], [ %v84, %body40 ]
  %acc43 = phi <4 x float> [ %v17, %done23 ], [ %v77, %body40 ]
  %acc44 = phi <4 x float> [ %v18, %done23 ], [ %v78, %body40 ]
  %acc45 = phi <4 x float> [ %v19, %done23 ], [ %v82, %body40 ]
  %acc46 = phi <4 x float> [ %v20, %done23 ], [ %v83, %body40 ]
  %v47 = icmp slt i64 %i42, %v34
  br i1 %v47, label %body40, label %done41
body40:
  %v48 = mul nsw i64 %i42, %step
  %p49 = getelementptr float, ptr %next, i64 %v48
  call void @llvm.prefetch.p0(ptr %p49, i32 0, i32 2, i32 1)
  %v50 = add nsw i64 %i42, 0
  %v51 = mul nsw i64 %v50, %b_r
  %p52 = getelementptr float, ptr %b, i64 %v51
  %v53 = mul nsw i64 %v50, %a_r
  %v54 = load <4 x float>, ptr %p52, align 4
  %p55 = getelementptr float, ptr %p52, i64 4
  %v56 = load <4 x float>, ptr %p55, align 4
  %p57 = getelementptr float, ptr %p36, i64 %v53
  %v58 = load <2 x float>, ptr %p57, align 4
  %v59 = shufflevector <2 x float> %v58, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v60 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v59, <4 x float> %v54, <4 x float> %acc43)
  %v61 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v59, <4 x float> %v56, <4 x float> %acc44)
  %p62 = getelementptr float, ptr %p38, i64 %v53
  %v63 = load <2 x float>, ptr %p62, align 4
  %v64 = shufflevector <2 x float> %v63, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v65 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v64, <4 x float> %v54, <4 x float> %acc45)
  %v66 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v64, <4 x float> %v56, <4 x float> %acc46)
  %v67 = add nsw i64 %i42, 1
  %v68 = mul nsw i64 %v67, %b_r
  %p69 = getelementptr float, ptr %b, i64 %v68
  %v70 = mul nsw i64 %v67, %a_r
  %v71 = load <4 x float>, ptr %p69, align 4
  %p72 = getelementptr float, ptr %p69, i64 4
  %v73 = load <4 x float>, ptr %p72, align 4
  %p74 = getelementptr float, ptr %p36, i64 %v70
  %v75 = load <2 x float>, ptr %p74, align 4
  %v76 = shufflevector <2 x float> %v75, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v77 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v76, <4 x float> %v71, <4 x float> %v60)
  %v78 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v76, <4 x float> %v73, <4 x float> %v61)
  %p79 = getelementptr float, ptr %p38, i64 %v70
  %v80 = load <2 x float>, ptr %p79, align 4
  %v81 = shufflevector <2 x float> %v80, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v82 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v81, <4 x float> %v71, <4 x float> %v65)
  %v83 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v81, <4 x float> %v73, <4 x float> %v66)
  %v84 = add nsw i64 %i42, 2
  br label %head39
done41:
  br label %head85
head85:
  %i88 = phi i64 [ %v34, %done41 ], [ %v111, %body86 ]
  %acc89 = phi <4 x float> [ %acc43, %done41 ], [ %v104, %body86 ]
  %acc90 = phi <4 x float> [ %acc44, %done41 ], [ %v105, %body86 ]
  %acc91 = phi <4 x float> [ %acc45, %done41 ], [ %v109, %body86 ]
  %acc92 = phi <4 x float> [ %acc46, %done41 ], [ %v110, %body86 ]
  %v93 = icmp slt i64 %i88, %r
  br i1 %v93, label %body86, label %done87
body86:
  %v94 = add nsw i64 %i88, 0
  %v95 = mul nsw i64 %v94, %b_r
  %p96 = getelementptr float, ptr %b, i64 %v95
  %v97 = mul nsw i64 %v94, %a_r
  %v98 = load <4 x float>, ptr %p96, align 4
  %p99 = getelementptr float, ptr %p96, i64 4
  %v100 = load <4 x float>, ptr %p99, align 4
  %p101 = getelementptr float, ptr %p36, i64 %v97
  %v102 = load <2 x float>, ptr %p101, align 4
  %v103 = shufflevector <2 x float> %v102, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v104 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v103, <4 x float> %v98, <4 x float> %acc89)
  %v105 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v103, <4 x float> %v100, <4 x float> %acc90)
  %p106 = getelementptr float, ptr %p38, i64 %v97
  %v107 = load <2 x float>, ptr %p106, align 4
  %v108 = shufflevector <2 x float> %v107, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v109 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v108, <4 x float> %v98, <4 x float> %acc91)
  %v110 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v108, <4 x float> %v100, <4 x float> %acc92)
  %v111 = add nsw i64 %i88, 1
  br label %head85
done87:
  store <4 x float> %acc89, ptr %p2, align 4
  %p112 = getelementptr float, ptr %p2, i64 4
  store <4 x float> %acc90, ptr %p112, align 4
  store <4 x float> %acc91, ptr %p4, align 4
  %p113 = getelementptr float, ptr %p4, i64 4
  store <4 x float> %acc92, ptr %p113, align 4
  ret void
}

define internal fastcc void @tile_1x8_whole(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %next, i64 %step) noinline {
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
  %v14 = icmp sge i64 %r, 64
  br i1 %v14, label %yes15, label %done16
yes15:
  %v17 = mul nsw i64 %c_p, 1
  %p18 = getelementptr float, ptr %p2, i64 %v17
  call void @llvm.prefetch.p0(ptr %p18, i32 1, i32 2, i32 1)
  %v19 = mul nsw i64 %c_p, 1
  %p20 = getelementptr float, ptr %p2, i64 %v19
  %p21 = getelementptr float, ptr %p20, i64 4
  call void @llvm.prefetch.p0(ptr %p21, i32 1, i32 2, i32 1)
  br label %done16
done16:
  %v22 = and i64 %r, -2
  %v23 = mul nsw i64 %a_p, 0
  %p24 = getelementptr float, ptr %a, i64 %v23
  br label %head25
head25:
  %i28 = phi i64 [ 0, %done16 ], [ %v58, %body26 ]
  %acc29 = phi <4 x float> [ %v12, %done16 ], [ %v56, %body26 ]
  %acc30 = phi <4 x float> [ %v13, %done16 ], [ %v57, %body26 ]
  %v31 = icmp slt i64 %i28, %v22
  br i1 %v31, label %body26, label %done27
body26:
  %v32 = mul nsw i64 %i28, %step
  %p33 = getelementptr float, ptr %next, i64 %v32
  call void @llvm.prefetch.p0(ptr %p33, i32 0, i32 2, i32 1)
  %v34 = add nsw i64 %i28, 0
  %v35 = mul nsw i64 %v34, %b_r
  %p36 = getelementptr float, ptr %b, i64 %v35
  %v37 = mul nsw i64 %v34, %a_r
  %v38 = load <4 x float>, ptr %p36, align 4
  %p39 = getelementptr float, ptr %p36, i64 4
  %v40 = load <4 x float>, ptr %p39, align 4
  %p41 = getelementptr float, ptr %p24, i64 %v37
  %v42 = load <2 x float>, ptr %p41, align 4
  %v43 = shufflevector <2 x float> %v42, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v44 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v43, <4 x float> %v38, <4 x float> %acc29)
  %v45 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v43, <4 x float> %v40, <4 x float> %acc30)
  %v46 = add nsw i64 %i28, 1
  %v47 = mul nsw i64 %v46, %b_r
  %p48 = getelementptr float, ptr %b, i64 %v47
  %v49 = mul nsw i64 %v46, %a_r
  %v50 = load <4 x float>, ptr %p48, align 4
  %p51 = getelementptr float, ptr %p48, i64 4
  %v52 = load <4 x float>, ptr %p51, align 4
  %p53 = getelementptr float, ptr %p24, i64 %v49
  %v54 = load <2 x float>, ptr %p53, align 4
  %v55 = shufflevector <2 x float> %v54, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v56 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v55, <4 x float> %v50, <4 x float> %v44)
  %v57 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v55, <4 x float> %v52, <4 x float> %v45)
  %v58 = add nsw i64 %i28, 2
  br label %head25
done27:
  br label %head59
head59:
  %i62 = phi i64 [ %v22, %done27 ], [ %v78, %body60 ]
  %acc63 = phi <4 x float> [ %acc29, %done27 ], [ %v76, %body60 ]
  %acc64 = phi <4 x float> [ %acc30, %done27 ], [ %v77, %body60 ]
  %v65 = icmp slt i64 %i62, %r
  br i1 %v65, label %body60, label %done61
body60:
  %v66 = add nsw i64 %i62, 0
  %v67 = mul nsw i64 %v66, %b_r
  %p68 = getelementptr float, ptr %b, i64 %v67
  %v69 = mul nsw i64 %v66, %a_r
  %v70 = load <4 x float>, ptr %p68, align 4
  %p71 = getelementptr float, ptr %p68, i64 4
  %v72 = load <4 x float>, ptr %p71, align 4
  %p73 = getelementptr float, ptr %p24, i64 %v69
  %v74 = load <2 x float>, ptr %p73, align 4
  %v75 = shufflevector <2 x float> %v74, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v76 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v75, <4 x float> %v70, <4 x float> %acc63)
  %v77 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v75, <4 x float> %v72, <4 x float> %acc64)
  %v78 = add nsw i64 %i62, 1
  br label %head59
done61:
  store <4 x float> %acc63, ptr %p2, align 4
  %p79 = getelementptr float, ptr %p2, i64 4
  store <4 x float> %acc64, ptr %p79, align 4
  ret void
}

define internal fastcc void @panel_8_masked(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %p, i64 %r, i64 %a_tile, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %next, i64 %step) noinline {
entry:
  %v1 = sub nsw i64 %p, 0
  %v2 = sdiv i64 %v1, 2
  %v3 = mul nsw i64 %v2, 2
  %v4 = add nsw i64 0, %v3
  br label %head5
head5:
  %i8 = phi i64 [ 0, %entry ], [ %v23, %body6 ]
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
  %v20 = mul nsw i64 %v10, %r
  %v21 = mul nsw i64 %v20, %step
  %p22 = getelementptr float, ptr %next, i64 %v21
  call fastcc void @tile_2x8_masked(ptr %p15, ptr %b, ptr %p17, ptr %p19, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %p22, i64 %step)
  %v23 = add nsw i64 %i8, 2
  br label %head5
done7:
  %v24 = sub nsw i64 %p, %v4
  %v25 = sdiv i64 %v24, 1
  %v26 = mul nsw i64 %v25, 1
  %v27 = add nsw i64 %v4, %v26
  br label %head28
head28:
  %i31 = phi i64 [ %v4, %done7 ], [ %v46, %body29 ]
  %v32 = icmp slt i64 %i31, %v27
  br i1 %v32, label %body29, label %done30
body29:
  %v33 = sdiv i64 %i31, 2
  %v34 = srem i64 %i31, 2
  %v35 = mul nsw i64 %v33, %a_tile
  %v36 = mul nsw i64 %v34, %a_p
  %p37 = getelementptr float, ptr %a, i64 %v35
  %p38 = getelementptr float, ptr %p37, i64 %v36
  %v39 = mul nsw i64 %i31, %c_p
  %p40 = getelementptr float, ptr %c, i64 %v39
  %v41 = mul nsw i64 %i31, %bias_p
  %p42 = getelementptr float, ptr %bias, i64 %v41
  %v43 = mul nsw i64 %v33, %r
  %v44 = mul nsw i64 %v43, %step
  %p45 = getelementptr float, ptr %next, i64 %v44
  call fastcc void @tile_1x8_masked(ptr %p38, ptr %b, ptr %p40, ptr %p42, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %p45, i64 %step)
  %v46 = add nsw i64 %i31, 1
  br label %head28
done30:
  ret void
}

define internal fastcc void @tile_2x8_masked(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %next, i64 %step) noinline {
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
  %v35 = and i64 %r, -2
  %v36 = mul nsw i64 %a_p, 0
  %p37 = getelementptr float, ptr %a, i64 %v36
  %v38 = mul nsw i64 %a_p, 1
  %p39 = getelementptr float, ptr %a, i64 %v38
  br label %head40
head40:
  %i43 = phi i64 [ 0, %done21 ], [ %v85, %body41 ]
  %acc44 = phi <4 x float> [ %v31, %done21 ], [ %v78, %body41 ]
  %acc45 = phi <4 x float> [ %v32, %done21 ], [ %v79, %body41 ]
  %acc46 = phi <4 x float> [ %v33, %done21 ], [ %v83, %body41 ]
  %acc47 = phi <4 x float> [ %v34, %done21 ], [ %v84, %body41 ]
  %v48 = icmp slt i64 %i43, %v35
  br i1 %v48, label %body41, label %done42
body41:
  %v49 = mul nsw i64 %i43, %step
  %p50 = getelementptr float, ptr %next, i64 %v49
  call void @llvm.prefetch.p0(ptr %p50, i32 0, i32 2, i32 1)
  %v51 = add nsw i64 %i43, 0
  %v52 = mul nsw i64 %v51, %b_r
  %p53 = getelementptr float, ptr %b, i64 %v52
  %v54 = mul nsw i64 %v51, %a_r
  %v55 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p53, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p56 = getelementptr float, ptr %p53, i64 4
  %v57 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p56, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %p58 = getelementptr float, ptr %p37, i64 %v54
  %v59 = load <2 x float>, ptr %p58, align 4
  %v60 = shufflevector <2 x float> %v59, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v61 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v60, <4 x float> %v55, <4 x float> %acc44)
  %v62 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v60, <4 x float> %v57, <4 x float> %acc45)
  %p63 = getelementptr float, ptr %p39, i64 %v54
  %v64 = load <2 x float>, ptr %p63, align 4
  %v65 = shufflevector <2 x float> %v64, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v66 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v65, <4 x float> %v55, <4 x float> %acc46)
  %v67 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v65, <4 x float> %v57, <4 x float> %acc47)
  %v68 = add nsw i64 %i43, 1
  %v69 = mul nsw i64 %v68, %b_r
  %p70 = getelementptr float, ptr %b, i64 %v69
  %v71 = mul nsw i64 %v68, %a_r
  %v72 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p70, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p73 = getelementptr float, ptr %p70, i64 4
  %v74 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p73, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %p75 = getelementptr float, ptr %p37, i64 %v71
  %v76 = load <2 x float>, ptr %p75, align 4
  %v77 = shufflevector <2 x float> %v76, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v78 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v77, <4 x float> %v72, <4 x float> %v61)
  %v79 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v77, <4 x float> %v74, <4 x float> %v62)
  %p80 = getelementptr float, ptr %p39, i64 %v71
  %v81 = load <2 x float>, ptr %p80, align 4
  %v82 = shufflevector <2 x float> %v81, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v83 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v82, <4 x float> %v72, <4 x float> %v66)
  %v84 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v82, <4 x float> %v74, <4 x float> %v67)
  %v85 = add nsw i64 %i43, 2
  br label %head40
done42:
  br label %head86
head86:
  %i89 = phi i64 [ %v35, %done42 ], [ %v112, %body87 ]
  %acc90 = phi <4 x float> [ %acc44, %done42 ], [ %v105, %body87 ]
  %acc91 = phi <4 x float> [ %acc45, %done42 ], [ %v106, %body87 ]
  %acc92 = phi <4 x float> [ %acc46, %done42 ], [ %v110, %body87 ]
  %acc93 = phi <4 x float> [ %acc47, %done42 ], [ %v111, %body87 ]
  %v94 = icmp slt i64 %i89, %r
  br i1 %v94, label %body87, label %done88
body87:
  %v95 = add nsw i64 %i89, 0
  %v96 = mul nsw i64 %v95, %b_r
  %p97 = getelementptr float, ptr %b, i64 %v96
  %v98 = mul nsw i64 %v95, %a_r
  %v99 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p97, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p100 = getelementptr float, ptr %p97, i64 4
  %v101 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p100, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %p102 = getelementptr float, ptr %p37, i64 %v98
  %v103 = load <2 x float>, ptr %p102, align 4
  %v104 = shufflevector <2 x float> %v103, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v105 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v104, <4 x float> %v99, <4 x float> %acc90)
  %v106 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v104, <4 x float> %v101, <4 x float> %acc91)
  %p107 = getelementptr float, ptr %p39, i64 %v98
  %v108 = load <2 x float>, ptr %p107, align 4
  %v109 = shufflevector <2 x float> %v108, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v110 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v109, <4 x float> %v99, <4 x float> %acc92)
  %v111 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v109, <4 x float> %v101, <4 x float> %acc93)
  %v112 = add nsw i64 %i89, 1
  br label %head86
done88:
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc90, ptr %p16, i32 4, <4 x i1> %v7)
  %p113 = getelementptr float, ptr %p16, i64 4
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc91, ptr %p113, i32 4, <4 x i1> %v14)
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc92, ptr %p18, i32 4, <4 x i1> %v7)
  %p114 = getelementptr float, ptr %p18, i64 4
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc93, ptr %p114, i32 4, <4 x i1> %v14)
  ret void
}

define internal fastcc void @tile_1x8_masked(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %next, i64 %step) noinline {
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
  %v28 = and i64 %r, -2
  %v29 = mul nsw i64 %a_p, 0
  %p30 = getelementptr float, ptr %a, i64 %v29
  br label %head31
head31:
  %i34 = phi i64 [ 0, %done19 ], [ %v64, %body32 ]
  %acc35 = phi <4 x float> [ %v26, %done19 ], [ %v62, %body32 ]
  %acc36 = phi <4 x float> [ %v27, %done19 ], [ %v63, %body32 ]
  %v37 = icmp slt i64 %i34, %v28
  br i1 %v37, label %body32, label %done33
body32:
  %v38 = mul nsw i64 %i34, %step
  %p39 = getelementptr float, ptr %next, i64 %v38
  call void @llvm.prefetch.p0(ptr %p39, i32 0, i32 2, i32 1)
  %v40 = add nsw i64 %i34, 0
  %v41 = mul nsw i64 %v40, %b_r
  %p42 = getelementptr float, ptr %b, i64 %v41
  %v43 = mul nsw i64 %v40, %a_r
  %v44 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p42, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p45 = getelementptr float, ptr %p42, i64 4
  %v46 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p45, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %p47 = getelementptr float, ptr %p30, i64 %v43
  %v48 = load <2 x float>, ptr %p47, align 4
  %v49 = shufflevector <2 x float> %v48, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v50 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v49, <4 x float> %v44, <4 x float> %acc35)
  %v51 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v49, <4 x float> %v46, <4 x float> %acc36)
  %v52 = add nsw i64 %i34, 1
  %v53 = mul nsw i64 %v52, %b_r
  %p54 = getelementptr float, ptr %b, i64 %v53
  %v55 = mul nsw i64 %v52, %a_r
  %v56 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p54, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p57 = getelementptr float, ptr %p54, i64 4
  %v58 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p57, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %p59 = getelementptr float, ptr %p30, i64 %v55
  %v60 = load <2 x float>, ptr %p59, align 4
  %v61 = shufflevector <2 x float> %v60, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v62 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v61, <4 x float> %v56, <4 x float> %v50)
  %v63 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v61, <4 x float> %v58, <4 x float> %v51)
  %v64 = add nsw i64 %i34, 2
  br label %head31
done33:
  br label %head65
head65:
  %i68 = phi i64 [ %v28, %done33 ], [ %v84, %body66 ]
  %acc69 = phi <4 x float> [ %acc35, %done33 ], [ %v82, %body66 ]
  %acc70 = phi <4 x float> [ %acc36, %done33 ], [ %v83, %body66 ]
  %v71 = icmp slt i64 %i68, %r
  br i1 %v71, label %body66, label %done67
body66:
  %v72 = add nsw i64 %i68, 0
  %v73 = mul nsw i64 %v72, %b_r
  %p74 = getelementptr float, ptr %b, i64 %v73
  %v75 = mul nsw i64 %v72, %a_r
  %v76 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p74, i32 4, <4 x i1> %v7, <4 x float> zeroinitializer)
  %p77 = getelementptr float, ptr %p74, i64 4
  %v78 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p77, i32 4, <4 x i1> %v14, <4 x float> zeroinitializer)
  %p79 = getelementptr float, ptr %p30, i64 %v75
  %v80 = load <2 x float>, ptr %p79, align 4
  %v81 = shufflevector <2 x float> %v80, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %v82 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v81, <4 x float> %v76, <4 x float> %acc69)
  %v83 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v81, <4 x float> %v78, <4 x float> %acc70)
  %v84 = add nsw i64 %i68, 1
  br label %head65
done67:
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc69, ptr %p16, i32 4, <4 x i1> %v7)
  %p85 = getelementptr float, ptr %p16, i64 4
  call void @llvm.masked.store.v4f32.p0(<4 x float> %acc70, ptr %p85, i32 4, <4 x i1> %v14)
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
  %v2 = add nsw i64 %p, 1
  %v3 = sdiv i64 %v2, 2
  %v7 = icmp sgt i64 %a_p, %a_r
  br i1 %v7, label %across4, label %down5
across4:
  br label %head8
head8:
  %i11 = phi i64 [ 0, %across4 ], [ %v40, %done18 ]
  %v12 = icmp slt i64 %i11, %v3
  br i1 %v12, label %body9, label %done10
body9:
  %v13 = mul nsw i64 %i11, 2
  %v14 = sub nsw i64 %p, %v13
  %v15 = call i64 @llvm.smin.i64(i64 2, i64 %v14)
  br label %head16
head16:
  %i19 = phi i64 [ 0, %body9 ], [ %v39, %done30 ]
  %v20 = icmp slt i64 %i19, %v15
  br i1 %v20, label %body17, label %done18
body17:
  %v21 = add nsw i64 %v13, %i19
  %v22 = mul nsw i64 %v21, %a_p
  %p23 = getelementptr float, ptr %a, i64 %v22
  %v24 = mul nsw i64 %i11, %v1
  %v25 = mul nsw i64 %i19, 2
  %p26 = getelementptr float, ptr %into, i64 %v24
  %p27 = getelementptr float, ptr %p26, i64 %v25
  br label %head28
head28:
  %i31 = phi i64 [ 0, %body17 ], [ %v38, %body29 ]
  %v32 = icmp slt i64 %i31, %r
  br i1 %v32, label %body29, label %done30
body29:
  %v33 = mul nsw i64 %i31, %a_r
  %p34 = getelementptr float, ptr %p23, i64 %v33
  %v35 = mul nsw i64 %i31, 4
  %p36 = getelementptr float, ptr %p27, i64 %v35
  %v37 = load <2 x float>, ptr %p34, align 4
  store <2 x float> %v37, ptr %p36, align 4
  %v38 = add nsw i64 %i31, 1
  br label %head28
done30:
  %v39 = add nsw i64 %i19, 1
  br label %head16
done18:
  %v40 = add nsw i64 %i11, 1
  br label %head8
done10:
  br label %done6
down5:
  %v41 = icmp eq i64 %a_p, 2
  %v42 = sdiv i64 %p, 2
  %v43 = select i1 %v41, i64 %v42, i64 0
  br label %head44
head44:
  %i47 = phi i64 [ 0, %down5 ], [ %v88, %done66 ]
  %v48 = icmp slt i64 %i47, %r
  br i1 %v48, label %body45, label %done46
body45:
  %v49 = mul nsw i64 %i47, %a_r
  %p50 = getelementptr float, ptr %a, i64 %v49
  %v51 = mul nsw i64 %i47, 4
  %p52 = getelementptr float, ptr %into, i64 %v51
  br label %head53
head53:
  %i56 = phi i64 [ 0, %body45 ], [ %v63, %body54 ]
  %v57 = icmp slt i64 %i56, %v43
  br i1 %v57, label %body54, label %done55
body54:
  %v58 = mul nsw i64 %i56, 4
  %p59 = getelementptr float, ptr %p50, i64 %v58
  %v60 = load <4 x float>, ptr %p59, align 4
  %v61 = mul nsw i64 %i56, %v1
  %p62 = getelementptr float, ptr %p52, i64 %v61
  store <4 x float> %v60, ptr %p62, align 4
  %v63 = add nsw i64 %i56, 1
  br label %head53
done55:
  br label %head64
head64:
  %i67 = phi i64 [ %v43, %done55 ], [ %v87, %done78 ]
  %v68 = icmp slt i64 %i67, %v3
  br i1 %v68, label %body65, label %done66
body65:
  %v69 = mul nsw i64 %i67, 2
  %v70 = sub nsw i64 %p, %v69
  %v71 = call i64 @llvm.smin.i64(i64 2, i64 %v70)
  %v72 = mul nsw i64 %v69, %a_p
  %p73 = getelementptr float, ptr %p50, i64 %v72
  %v74 = mul nsw i64 %i67, %v1
  %p75 = getelementptr float, ptr %p52, i64 %v74
  br label %head76
head76:
  %i79 = phi i64 [ 0, %body65 ], [ %v86, %body77 ]
  %v80 = icmp slt i64 %i79, %v71
  br i1 %v80, label %body77, label %done78
body77:
  %v81 = mul nsw i64 %i79, %a_p
  %p82 = getelementptr float, ptr %p73, i64 %v81
  %v83 = mul nsw i64 %i79, 2
  %p84 = getelementptr float, ptr %p75, i64 %v83
  %v85 = load <2 x float>, ptr %p82, align 4
  store <2 x float> %v85, ptr %p84, align 4
  %v86 = add nsw i64 %i79, 1
  br label %head76
done78:
  %v87 = add nsw i64 %i67, 1
  br label %head64
done66:
  %v88 = add nsw i64 %i47, 1
  br label %head44
done46:
  br label %done6
done6:
  ret void
}
