; Kronecker-sparse sums along lanes, tile 2x2 vectors of 4 groups of 2 f64

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
  %p23 = getelementptr ptr, ptr %pointers, i64 0
  %v24 = load ptr, ptr %p23, align 8
  %p25 = getelementptr ptr, ptr %pointers, i64 1
  %v26 = load ptr, ptr %p25, align 8
  %p27 = getelementptr ptr, ptr %pointers, i64 2
  %v28 = load ptr, ptr %p27, align 8
  %v29 = sub nsw i64 %v8, 1
  %v30 = add nsw i64 %v4, %v29
  %v31 = sdiv i64 %v30, %v8
  br label %head32
head32:
  %i35 = phi i64 [ %begin, %entry ], [ %v134, %done97 ]
  %v36 = icmp slt i64 %i35, %end
  br i1 %v36, label %body33, label %done34
body33:
  %v37 = sdiv i64 %i35, %v31
  %v38 = srem i64 %i35, %v31
  %v39 = mul nsw i64 %v38, %v8
  %v40 = add nsw i64 %v39, %v8
  %v41 = call i64 @llvm.smin.i64(i64 %v4, i64 %v40)
  %v42 = mul nsw i64 %v37, %v10
  %p43 = getelementptr double, ptr %v24, i64 %v42
  %v44 = mul nsw i64 %v37, %v14
  %p45 = getelementptr double, ptr %v26, i64 %v44
  %v46 = mul nsw i64 %v37, %v18
  %p47 = getelementptr double, ptr %v28, i64 %v46
  %v48 = sub nsw i64 %v41, %v39
  %v49 = sdiv i64 %v48, 2
  %v50 = mul nsw i64 %v49, 2
  %v51 = add nsw i64 %v39, %v50
  br label %head52
head52:
  %i55 = phi i64 [ %v39, %body33 ], [ %v90, %done81 ]
  %v56 = icmp slt i64 %i55, %v51
  br i1 %v56, label %body53, label %done54
body53:
  %v57 = mul nsw i64 %i55, %v16
  %p58 = getelementptr double, ptr %p45, i64 %v57
  %v59 = mul nsw i64 %i55, 2
  %v60 = sub nsw i64 %v2, 0
  %v61 = sdiv i64 %v60, 2
  %v62 = mul nsw i64 %v61, 2
  %v63 = add nsw i64 0, %v62
  br label %head64
head64:
  %i67 = phi i64 [ 0, %body53 ], [ %v74, %body65 ]
  %v68 = icmp slt i64 %i67, %v63
  br i1 %v68, label %body65, label %done66
body65:
  %v69 = mul nsw i64 %i67, %v12
  %p70 = getelementptr double, ptr %p43, i64 %v69
  %v71 = mul nsw i64 %i67, %v20
  %p72 = getelementptr double, ptr %p47, i64 %v71
  %p73 = getelementptr double, ptr %p72, i64 %v59
  call fastcc void @dot_2_2(ptr %p70, ptr %p58, ptr %p73, ptr null, i64 %v6, i64 %v12, i64 %v16, i64 %v20)
  %v74 = add nsw i64 %i67, 2
  br label %head64
done66:
  %v75 = sub nsw i64 %v2, %v63
  %v76 = sdiv i64 %v75, 1
  %v77 = mul nsw i64 %v76, 1
  %v78 = add nsw i64 %v63, %v77
  br label %head79
head79:
  %i82 = phi i64 [ %v63, %done66 ], [ %v89, %body80 ]
  %v83 = icmp slt i64 %i82, %v78
  br i1 %v83, label %body80, label %done81
body80:
  %v84 = mul nsw i64 %i82, %v12
  %p85 = getelementptr double, ptr %p43, i64 %v84
  %v86 = mul nsw i64 %i82, %v20
  %p87 = getelementptr double, ptr %p47, i64 %v86
  %p88 = getelementptr double, ptr %p87, i64 %v59
  call fastcc void @dot_1_2(ptr %p85, ptr %p58, ptr %p88, ptr null, i64 %v6, i64 %v12, i64 %v16, i64 %v20)
  %v89 = add nsw i64 %i82, 1
  br label %head79
done81:
  %v90 = add nsw i64 %i55, 2
  br label %head52
done54:
  %v91 = sub nsw i64 %v41, %v51
  %v92 = sdiv i64 %v91, 1
  %v93 = mul nsw i64 %v92, 1
  %v94 = add nsw i64 %v51, %v93
  br label %head95
head95:
  %i98 = phi i64 [ %v51, %done54 ], [ %v133, %done124 ]
  %v99 = icmp slt i64 %i98, %v94
  br i1 %v99, label %body96, label %done97
body96:
  %v100 = mul nsw i64 %i98, %v16
  %p101 = getelementptr double, ptr %p45, i64 %v100
  %v102 = mul nsw i64 %i98, 2
  %v103 = sub nsw i64 %v2, 0
  %v104 = sdiv i64 %v103, 2
  %v105 = mul nsw i64 %v104, 2
  %v106 = add nsw i64 0, %v105
  br label %head107
head107:
  %i110 = phi i64 [ 0, %body96 ], [ %v117, %body108 ]
  %v111 = icmp slt i64 %i110, %v106
  br i1 %v111, label %body108, label %done109
body108:
  %v112 = mul nsw i64 %i110, %v12
  %p113 = getelementptr double, ptr %p43, i64 %v112
  %v114 = mul nsw i64 %i110, %v20
  %p115 = getelementptr double, ptr %p47, i64 %v114
  %p116 = getelementptr double, ptr %p115, i64 %v102
  call fastcc void @dot_2_1(ptr %p113, ptr %p101, ptr %p116, ptr null, i64 %v6, i64 %v12, i64 %v16, i64 %v20)
  %v117 = add nsw i64 %i110, 2
  br label %head107
done109:
  %v118 = sub nsw i64 %v2, %v106
  %v119 = sdiv i64 %v118, 1
  %v120 = mul nsw i64 %v119, 1
  %v121 = add nsw i64 %v106, %v120
  br label %head122
head122:
  %i125 = phi i64 [ %v106, %done109 ], [ %v132, %body123 ]
  %v126 = icmp slt i64 %i125, %v121
  br i1 %v126, label %body123, label %done124
body123:
  %v127 = mul nsw i64 %i125, %v12
  %p128 = getelementptr double, ptr %p43, i64 %v127
  %v129 = mul nsw i64 %i125, %v20
  %p130 = getelementptr double, ptr %p47, i64 %v129
  %p131 = getelementptr double, ptr %p130, i64 %v102
  call fastcc void @dot_1_1(ptr %p128, ptr %p101, ptr %p131, ptr null, i64 %v6, i64 %v12, i64 %v16, i64 %v20)
  %v132 = add nsw i64 %i125, 1
  br label %head122
done124:
  %v133 = add nsw i64 %i98, 1
  br label %head95
done97:
  %v134 = add nsw i64 %i35, 1
  br label %head32
done34:
  ret void
}

define internal fastcc void @dot_2_2(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %b_q, i64 %c_p) noinline {
entry:
  %v1 = srem i64 %r, 4
  %v2 = sub nsw i64 %r, %v1
  br label %head3
head3:
  %i6 = phi i64 [ 0, %entry ], [ %v32, %body4 ]
  %acc7 = phi <4 x double> [ zeroinitializer, %entry ], [ %v28, %body4 ]
  %acc8 = phi <4 x double> [ zeroinitializer, %entry ], [ %v29, %body4 ]
  %acc9 = phi <4 x double> [ zeroinitializer, %entry ], [ %v30, %body4 ]
  %acc10 = phi <4 x double> [ zeroinitializer, %entry ], [ %v31, %body4 ]
  %v11 = icmp slt i64 %i6, %v2
  br i1 %v11, label %body4, label %done5
body4:
  %v12 = mul nsw i64 %b_q, 0
  %p13 = getelementptr double, ptr %b, i64 %v12
  %p14 = getelementptr double, ptr %p13, i64 %i6
  %v15 = load <4 x double>, ptr %p14, align 8
  %v16 = mul nsw i64 %b_q, 1
  %p17 = getelementptr double, ptr %b, i64 %v16
  %p18 = getelementptr double, ptr %p17, i64 %i6
  %v19 = load <4 x double>, ptr %p18, align 8
  %v20 = mul nsw i64 %a_p, 0
  %p21 = getelementptr double, ptr %a, i64 %v20
  %p22 = getelementptr double, ptr %p21, i64 %i6
  %v23 = load <4 x double>, ptr %p22, align 8
  %v24 = mul nsw i64 %a_p, 1
  %p25 = getelementptr double, ptr %a, i64 %v24
  %p26 = getelementptr double, ptr %p25, i64 %i6
  %v27 = load <4 x double>, ptr %p26, align 8
  %v28 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v23, <4 x double> %v15, <4 x double> %acc7)
  %v29 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v23, <4 x double> %v19, <4 x double> %acc8)
  %v30 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v27, <4 x double> %v15, <4 x double> %acc9)
  %v31 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v27, <4 x double> %v19, <4 x double> %acc10)
  %v32 = add nsw i64 %i6, 4
  br label %head3
done5:
  br label %head33
head33:
  %i36 = phi i64 [ %v2, %done5 ], [ %v69, %body34 ]
  %acc37 = phi <4 x double> [ %acc7, %done5 ], [ %v65, %body34 ]
  %acc38 = phi <4 x double> [ %acc8, %done5 ], [ %v66, %body34 ]
  %acc39 = phi <4 x double> [ %acc9, %done5 ], [ %v67, %body34 ]
  %acc40 = phi <4 x double> [ %acc10, %done5 ], [ %v68, %body34 ]
  %v41 = icmp slt i64 %i36, %r
  br i1 %v41, label %body34, label %done35
body34:
  %v42 = sub nsw i64 %r, %i36
  %v43 = call i64 @llvm.smin.i64(i64 %v42, i64 4)
  %v44 = call i64 @llvm.smax.i64(i64 -1, i64 %v43)
  %v45 = trunc i64 %v44 to i32
  %v46 = insertelement <4 x i32> poison, i32 %v45, i64 0
  %v47 = shufflevector <4 x i32> %v46, <4 x i32> poison, <4 x i32> zeroinitializer
  %v48 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v47
  %v49 = mul nsw i64 %b_q, 0
  %p50 = getelementptr double, ptr %b, i64 %v49
  %p51 = getelementptr double, ptr %p50, i64 %i36
  %v52 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p51, i32 8, <4 x i1> %v48, <4 x double> zeroinitializer)
  %v53 = mul nsw i64 %b_q, 1
  %p54 = getelementptr double, ptr %b, i64 %v53
  %p55 = getelementptr double, ptr %p54, i64 %i36
  %v56 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p55, i32 8, <4 x i1> %v48, <4 x double> zeroinitializer)
  %v57 = mul nsw i64 %a_p, 0
  %p58 = getelementptr double, ptr %a, i64 %v57
  %p59 = getelementptr double, ptr %p58, i64 %i36
  %v60 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p59, i32 8, <4 x i1> %v48, <4 x double> zeroinitializer)
  %v61 = mul nsw i64 %a_p, 1
  %p62 = getelementptr double, ptr %a, i64 %v61
  %p63 = getelementptr double, ptr %p62, i64 %i36
  %v64 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p63, i32 8, <4 x i1> %v48, <4 x double> zeroinitializer)
  %v65 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v60, <4 x double> %v52, <4 x double> %acc37)
  %v66 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v60, <4 x double> %v56, <4 x double> %acc38)
  %v67 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v64, <4 x double> %v52, <4 x double> %acc39)
  %v68 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v64, <4 x double> %v56, <4 x double> %acc40)
  %v69 = add nsw i64 %i36, 4
  br label %head33
done35:
  %v70 = shufflevector <4 x double> %acc37, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v71 = shufflevector <4 x double> %acc37, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v72 = fadd <2 x double> %v70, %v71
  %v73 = mul nsw i64 %c_p, 0
  %p74 = getelementptr double, ptr %c, i64 %v73
  store <2 x double> %v72, ptr %p74, align 8
  %v75 = shufflevector <4 x double> %acc38, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v76 = shufflevector <4 x double> %acc38, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v77 = fadd <2 x double> %v75, %v76
  %v78 = mul nsw i64 %c_p, 0
  %p79 = getelementptr double, ptr %c, i64 %v78
  %p80 = getelementptr double, ptr %p79, i64 2
  store <2 x double> %v77, ptr %p80, align 8
  %v81 = shufflevector <4 x double> %acc39, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v82 = shufflevector <4 x double> %acc39, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v83 = fadd <2 x double> %v81, %v82
  %v84 = mul nsw i64 %c_p, 1
  %p85 = getelementptr double, ptr %c, i64 %v84
  store <2 x double> %v83, ptr %p85, align 8
  %v86 = shufflevector <4 x double> %acc40, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v87 = shufflevector <4 x double> %acc40, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v88 = fadd <2 x double> %v86, %v87
  %v89 = mul nsw i64 %c_p, 1
  %p90 = getelementptr double, ptr %c, i64 %v89
  %p91 = getelementptr double, ptr %p90, i64 2
  store <2 x double> %v88, ptr %p91, align 8
  ret void
}

define internal fastcc void @dot_1_2(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %b_q, i64 %c_p) noinline {
entry:
  %v1 = srem i64 %r, 4
  %v2 = sub nsw i64 %r, %v1
  br label %head3
head3:
  %i6 = phi i64 [ 0, %entry ], [ %v24, %body4 ]
  %acc7 = phi <4 x double> [ zeroinitializer, %entry ], [ %v22, %body4 ]
  %acc8 = phi <4 x double> [ zeroinitializer, %entry ], [ %v23, %body4 ]
  %v9 = icmp slt i64 %i6, %v2
  br i1 %v9, label %body4, label %done5
body4:
  %v10 = mul nsw i64 %b_q, 0
  %p11 = getelementptr double, ptr %b, i64 %v10
  %p12 = getelementptr double, ptr %p11, i64 %i6
  %v13 = load <4 x double>, ptr %p12, align 8
  %v14 = mul nsw i64 %b_q, 1
  %p15 = getelementptr double, ptr %b, i64 %v14
  %p16 = getelementptr double, ptr %p15, i64 %i6
  %v17 = load <4 x double>, ptr %p16, align 8
  %v18 = mul nsw i64 %a_p, 0
  %p19 = getelementptr double, ptr %a, i64 %v18
  %p20 = getelementptr double, ptr %p19, i64 %i6
  %v21 = load <4 x double>, ptr %p20, align 8
  %v22 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v21, <4 x double> %v13, <4 x double> %acc7)
  %v23 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v21, <4 x double> %v17, <4 x double> %acc8)
  %v24 = add nsw i64 %i6, 4
  br label %head3
done5:
  br label %head25
head25:
  %i28 = phi i64 [ %v2, %done5 ], [ %v53, %body26 ]
  %acc29 = phi <4 x double> [ %acc7, %done5 ], [ %v51, %body26 ]
  %acc30 = phi <4 x double> [ %acc8, %done5 ], [ %v52, %body26 ]
  %v31 = icmp slt i64 %i28, %r
  br i1 %v31, label %body26, label %done27
body26:
  %v32 = sub nsw i64 %r, %i28
  %v33 = call i64 @llvm.smin.i64(i64 %v32, i64 4)
  %v34 = call i64 @llvm.smax.i64(i64 -1, i64 %v33)
  %v35 = trunc i64 %v34 to i32
  %v36 = insertelement <4 x i32> poison, i32 %v35, i64 0
  %v37 = shufflevector <4 x i32> %v36, <4 x i32> poison, <4 x i32> zeroinitializer
  %v38 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v37
  %v39 = mul nsw i64 %b_q, 0
  %p40 = getelementptr double, ptr %b, i64 %v39
  %p41 = getelementptr double, ptr %p40, i64 %i28
  %v42 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p41, i32 8, <4 x i1> %v38, <4 x double> zeroinitializer)
  %v43 = mul nsw i64 %b_q, 1
  %p44 = getelementptr double, ptr %b, i64 %v43
  %p45 = getelementptr double, ptr %p44, i64 %i28
  %v46 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p45, i32 8, <4 x i1> %v38, <4 x double> zeroinitializer)
  %v47 = mul nsw i64 %a_p, 0
  %p48 = getelementptr double, ptr %a, i64 %v47
  %p49 = getelementptr double, ptr %p48, i64 %i28
  %v50 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p49, i32 8, <4 x i1> %v38, <4 x double> zeroinitializer)
  %v51 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v50, <4 x double> %v42, <4 x double> %acc29)
  %v52 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v50, <4 x double> %v46, <4 x double> %acc30)
  %v53 = add nsw i64 %i28, 4
  br label %head25
done27:
  %v54 = shufflevector <4 x double> %acc29, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v55 = shufflevector <4 x double> %acc29, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v56 = fadd <2 x double> %v54, %v55
  %v57 = mul nsw i64 %c_p, 0
  %p58 = getelementptr double, ptr %c, i64 %v57
  store <2 x double> %v56, ptr %p58, align 8
  %v59 = shufflevector <4 x double> %acc30, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v60 = shufflevector <4 x double> %acc30, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v61 = fadd <2 x double> %v59, %v60
  %v62 = mul nsw i64 %c_p, 0
  %p63 = getelementptr double, ptr %c, i64 %v62
  %p64 = getelementptr double, ptr %p63, i64 2
  store <2 x double> %v61, ptr %p64, align 8
  ret void
}

define internal fastcc void @dot_2_1(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %b_q, i64 %c_p) noinline {
entry:
  %v1 = srem i64 %r, 4
  %v2 = sub nsw i64 %r, %v1
  br label %head3
head3:
  %i6 = phi i64 [ 0, %entry ], [ %v24, %body4 ]
  %acc7 = phi <4 x double> [ zeroinitializer, %entry ], [ %v22, %body4 ]
  %acc8 = phi <4 x double> [ zeroinitializer, %entry ], [ %v23, %body4 ]
  %v9 = icmp slt i64 %i6, %v2
  br i1 %v9, label %body4, label %done5
body4:
  %v10 = mul nsw i64 %b_q, 0
  %p11 = getelementptr double, ptr %b, i64 %v10
  %p12 = getelementptr double, ptr %p11, i64 %i6
  %v13 = load <4 x double>, ptr %p12, align 8
  %v14 = mul nsw i64 %a_p, 0
  %p15 = getelementptr double, ptr %a, i64 %v14
  %p16 = getelementptr double, ptr %p15, i64 %i6
  %v17 = load <4 x double>, ptr %p16, align 8
  %v18 = mul nsw i64 %a_p, 1
  %p19 = getelementptr double, ptr %a, i64 %v18
  %p20 = getelementptr double, ptr %p19, i64 %i6
  %v21 = load <4 x double>, ptr %p20, align 8
  %v22 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v17, <4 x double> %v13, <4 x double> %acc7)
  %v23 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v21, <4 x double> %v13, <4 x double> %acc8)
  %v24 = add nsw i64 %i6, 4
  br label %head3
done5:
  br label %head25
head25:
  %i28 = phi i64 [ %v2, %done5 ], [ %v53, %body26 ]
  %acc29 = phi <4 x double> [ %acc7, %done5 ], [ %v51, %body26 ]
  %acc30 = phi <4 x double> [ %acc8, %done5 ], [ %v52, %body26 ]
  %v31 = icmp slt i64 %i28, %r
  br i1 %v31, label %body26, label %done27
body26:
  %v32 = sub nsw i64 %r, %i28
  %v33 = call i64 @llvm.smin.i64(i64 %v32, i64 4)
  %v34 = call i64 @llvm.smax.i64(i64 -1, i64 %v33)
  %v35 = trunc i64 %v34 to i32
  %v36 = insertelement <4 x i32> poison, i32 %v35, i64 0
  %v37 = shufflevector <4 x i32> %v36, <4 x i32> poison, <4 x i32> zeroinitializer
  %v38 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v37
  %v39 = mul nsw i64 %b_q, 0
  %p40 = getelementptr double, ptr %b, i64 %v39
  %p41 = getelementptr double, ptr %p40, i64 %i28
  %v42 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p41, i32 8, <4 x i1> %v38, <4 x double> zeroinitializer)
  %v43 = mul nsw i64 %a_p, 0
  %p44 = getelementptr double, ptr %a, i64 %v43
  %p45 = getelementptr double, ptr %p44, i64 %i28
  %v46 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p45, i32 8, <4 x i1> %v38, <4 x double> zeroinitializer)
  %v47 = mul nsw i64 %a_p, 1
  %p48 = getelementptr double, ptr %a, i64 %v47
  %p49 = getelementptr double, ptr %p48, i64 %i28
  %v50 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p49, i32 8, <4 x i1> %v38, <4 x double> zeroinitializer)
  %v51 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v46, <4 x double> %v42, <4 x double> %acc29)
  %v52 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v50, <4 x double> %v42, <4 x double> %acc30)
  %v53 = add nsw i64 %i28, 4
  br label %head25
done27:
  %v54 = shufflevector <4 x double> %acc29, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v55 = shufflevector <4 x double> %acc29, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v56 = fadd <2 x double> %v54, %v55
  %v57 = mul nsw i64 %c_p, 0
  %p58 = getelementptr double, ptr %c, i64 %v57
  store <2 x double> %v56, ptr %p58, align 8
  %v59 = shufflevector <4 x double> %acc30, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v60 = shufflevector <4 x double> %acc30, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v61 = fadd <2 x double> %v59, %v60
  %v62 = mul nsw i64 %c_p, 1
  %p63 = getelementptr double, ptr %c, i64 %v62
  store <2 x double> %v61, ptr %p63, align 8
  ret void
}

define internal fastcc void @dot_1_1(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %bias, i64 %r, i64 %a_p, i64 %b_q, i64 %c_p) noinline {
entry:
  %v1 = srem i64 %r, 4
  %v2 = sub nsw i64 %r, %v1
  br label %head3
head3:
  %i6 = phi i64 [ 0, %entry ], [ %v18, %body4 ]
  %acc7 = phi <4 x double> [ zeroinitializer, %entry ], [ %v17, %body4 ]
  %v8 = icmp slt i64 %i6, %v2
  br i1 %v8, label %body4, label %done5
body4:
  %v9 = mul nsw i64 %b_q, 0
  %p10 = getelementptr double, ptr %b, i64 %v9
  %p11 = getelementptr double, ptr %p10, i64 %i6
  %v12 = load <4 x double>, ptr %p11, align 8
  %v13 = mul nsw i64 %a_p, 0
  %p14 = getelementptr double, ptr %a, i64 %v13
  %p15 = getelementptr double, ptr %p14, i64 %i6
  %v16 = load <4 x double>, ptr %p15, align 8
  %v17 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v16, <4 x double> %v12, <4 x double> %acc7)
  %v18 = add nsw i64 %i6, 4
  br label %head3
done5:
  br label %head19
head19:
  %i22 = phi i64 [ %v2, %done5 ], [ %v41, %body20 ]
  %acc23 = phi <4 x double> [ %acc7, %done5 ], [ %v40, %body20 ]
  %v24 = icmp slt i64 %i22, %r
  br i1 %v24, label %body20, label %done21
body20:
  %v25 = sub nsw i64 %r, %i22
  %v26 = call i64 @llvm.smin.i64(i64 %v25, i64 4)
  %v27 = call i64 @llvm.smax.i64(i64 -1, i64 %v26)
  %v28 = trunc i64 %v27 to i32
  %v29 = insertelement <4 x i32> poison, i32 %v28, i64 0
  %v30 = shufflevector <4 x i32> %v29, <4 x i32> poison, <4 x i32> zeroinitializer
  %v31 = icmp slt <4 x i32> <i32 0, i32 1, i32 2, i32 3>, %v30
  %v32 = mul nsw i64 %b_q, 0
  %p33 = getelementptr double, ptr %b, i64 %v32
  %p34 = getelementptr double, ptr %p33, i64 %i22
  %v35 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p34, i32 8, <4 x i1> %v31, <4 x double> zeroinitializer)
  %v36 = mul nsw i64 %a_p, 0
  %p37 = getelementptr double, ptr %a, i64 %v36
  %p38 = getelementptr double, ptr %p37, i64 %i22
  %v39 = call <4 x double> @llvm.masked.load.v4f64.p0(ptr %p38, i32 8, <4 x i1> %v31, <4 x double> zeroinitializer)
  %v40 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v39, <4 x double> %v35, <4 x double> %acc23)
  %v41 = add nsw i64 %i22, 4
  br label %head19
done21:
  %v42 = shufflevector <4 x double> %acc23, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %v43 = shufflevector <4 x double> %acc23, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %v44 = fadd <2 x double> %v42, %v43
  %v45 = mul nsw i64 %c_p, 0
  %p46 = getelementptr double, ptr %c, i64 %v45
  store <2 x double> %v44, ptr %p46, align 8
  ret void
}
