; gram tile 2x8 (2 vectors of 4) blocks 32x384x512 [rows x0, columns x1] optimistic f64

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
  %p25 = getelementptr i64, ptr %integers, i64 13
  %v26 = load i64, ptr %p25, align 8
  %p27 = getelementptr i64, ptr %integers, i64 15
  %v28 = load i64, ptr %p27, align 8
  %p29 = getelementptr i64, ptr %integers, i64 16
  %v30 = load i64, ptr %p29, align 8
  %p31 = getelementptr i64, ptr %integers, i64 17
  %v32 = load i64, ptr %p31, align 8
  %p33 = getelementptr i64, ptr %integers, i64 19
  %v34 = load i64, ptr %p33, align 8
  %p35 = getelementptr i64, ptr %integers, i64 20
  %v36 = load i64, ptr %p35, align 8
  %p37 = getelementptr i64, ptr %integers, i64 22
  %v38 = load i64, ptr %p37, align 8
  %p39 = getelementptr i64, ptr %integers, i64 23
  %v40 = load i64, ptr %p39, align 8
  %p41 = getelementptr i64, ptr %integers, i64 24
  %v42 = load i64, ptr %p41, align 8
  %p43 = getelementptr i64, ptr %integers, i64 25
  %v44 = load i64, ptr %p43, align 8
  %p45 = getelementptr i64, ptr %integers, i64 26
  %v46 = load i64, ptr %p45, align 8
  %v47 = add nsw i64 %v8, 1
  %v48 = sdiv i64 %v47, 2
  %v49 = mul nsw i64 %v48, 2
  %v50 = call i64 @llvm.smin.i64(i64 32, i64 %v49)
  %v51 = add nsw i64 %v10, 7
  %v52 = sdiv i64 %v51, 8
  %v53 = mul nsw i64 %v52, 8
  %v54 = call i64 @llvm.smin.i64(i64 384, i64 %v53)
  %v55 = call i64 @llvm.smax.i64(i64 1, i64 %v12)
  %v56 = call i64 @llvm.smin.i64(i64 512, i64 %v55)
  %v57 = ptrtoint ptr %scratch to i64
  %v58 = add nsw i64 %v57, 63
  %v59 = and i64 %v58, -64
  %v60 = inttoptr i64 %v59 to ptr
  %v61 = mul nsw i64 %v56, 1
  %v62 = mul nsw i64 %v50, 8
  %v63 = mul nsw i64 %v61, %v62
  %v64 = add nsw i64 %v63, 63
  %v65 = and i64 %v64, -64
  %p66 = getelementptr i8, ptr %v60, i64 %v65
  %v67 = mul nsw i64 %v56, 1
  %v68 = mul nsw i64 %v54, 8
  %v69 = mul nsw i64 %v67, %v68
  %v70 = add nsw i64 %v69, 63
  %v71 = and i64 %v70, -64
  %p72 = getelementptr i8, ptr %p66, i64 %v71
  %v73 = sdiv i64 %v54, 8
  %p74 = getelementptr ptr, ptr %pointers, i64 0
  %v75 = load ptr, ptr %p74, align 8
  %p76 = getelementptr ptr, ptr %pointers, i64 1
  %v77 = load ptr, ptr %p76, align 8
  %p78 = getelementptr ptr, ptr %pointers, i64 2
  %v79 = load ptr, ptr %p78, align 8
  %v80 = add nsw i64 %v8, 7
  %v81 = sdiv i64 %v80, 8
  br label %head82
head82:
  %item85 = phi i64 [ %begin, %entry ], [ %v221, %done133 ]
  %v86 = icmp slt i64 %item85, %end
  br i1 %v86, label %body83, label %done84
body83:
  %v87 = sdiv i64 %item85, %v81
  %v88 = srem i64 %item85, %v81
  %v89 = sub nsw i64 %v81, %v88
  %v90 = sub nsw i64 %end, %item85
  %v91 = call i64 @llvm.smin.i64(i64 %v89, i64 %v90)
  %v92 = mul nsw i64 %v88, 8
  %v93 = add nsw i64 %v88, %v91
  %v94 = mul nsw i64 %v93, 8
  %v95 = call i64 @llvm.smin.i64(i64 %v8, i64 %v94)
  %v96 = srem i64 %v87, %v16
  %v97 = sdiv i64 %v87, %v16
  %v98 = srem i64 %v97, %v6
  %v99 = sdiv i64 %v97, %v6
  %v100 = srem i64 %v99, %v4
  %v101 = sdiv i64 %v99, %v4
  %v102 = mul nsw i64 %v101, %v18
  %v103 = add nsw i64 0, %v102
  %v104 = mul nsw i64 %v100, %v20
  %v105 = add nsw i64 %v103, %v104
  %v106 = mul nsw i64 %v98, %v22
  %v107 = add nsw i64 %v105, %v106
  %p108 = getelementptr double, ptr %v75, i64 %v107
  %v109 = mul nsw i64 %v101, %v28
  %v110 = add nsw i64 0, %v109
  %v111 = mul nsw i64 %v100, %v30
  %v112 = add nsw i64 %v110, %v111
  %v113 = mul nsw i64 %v98, %v32
  %v114 = add nsw i64 %v112, %v113
  %p115 = getelementptr double, ptr %v77, i64 %v114
  %v116 = mul nsw i64 %v101, %v38
  %v117 = add nsw i64 0, %v116
  %v118 = mul nsw i64 %v100, %v40
  %v119 = add nsw i64 %v117, %v118
  %v120 = mul nsw i64 %v98, %v42
  %v121 = add nsw i64 %v119, %v120
  %p122 = getelementptr double, ptr %v79, i64 %v121
  %v123 = sub nsw i64 %v12, 0
  %v124 = sub nsw i64 %v14, 0
  %v125 = mul nsw i64 %v123, %v124
  %v126 = icmp sle i64 %v125, 0
  %v127 = add nsw i64 %v123, 511
  %v128 = sdiv i64 %v127, 512
  %v129 = call i64 @llvm.smax.i64(i64 1, i64 %v128)
  %v130 = icmp sgt i64 %v10, 384
  br label %head131
head131:
  %i134 = phi i64 [ %v92, %body83 ], [ %v220, %done140 ]
  %v135 = icmp slt i64 %i134, %v95
  br i1 %v135, label %body132, label %done133
body132:
  %v136 = sub nsw i64 %v95, %i134
  %v137 = call i64 @llvm.smin.i64(i64 32, i64 %v136)
  br label %head138
head138:
  %i141 = phi i64 [ 0, %body132 ], [ %v219, %done150 ]
  %v142 = icmp slt i64 %i141, %v10
  br i1 %v142, label %body139, label %done140
body139:
  %v143 = sub nsw i64 %v10, %i141
  %v144 = call i64 @llvm.smin.i64(i64 384, i64 %v143)
  %v145 = icmp eq i64 %i141, 0
  %v146 = icmp eq i64 %i134, %v92
  %v147 = or i1 %v130, %v146
  br label %head148
head148:
  %i151 = phi i64 [ 0, %body139 ], [ %v218, %done187 ]
  %v152 = icmp slt i64 %i151, %v129
  br i1 %v152, label %body149, label %done150
body149:
  %v153 = mul nsw i64 %i151, 512
  %v154 = add nsw i64 0, %v153
  %v155 = sub nsw i64 %v12, %v154
  %v156 = call i64 @llvm.smin.i64(i64 512, i64 %v155)
  %v157 = select i1 %v126, i64 0, i64 %v156
  %v158 = icmp ne i64 %v129, 1
  %v159 = icmp ne i64 %v129, 1
  %v160 = or i1 %v145, %v158
  br i1 %v160, label %yes161, label %done162
yes161:
  %v163 = mul nsw i64 %v154, %v26
  %v164 = add nsw i64 0, %v163
  %v165 = mul nsw i64 %i134, %v24
  %v166 = add nsw i64 %v164, %v165
  %p167 = getelementptr double, ptr %p108, i64 %v166
  %v168 = xor i1 %v126, true
  br i1 %v168, label %yes169, label %done170
yes169:
  call fastcc void @km_pack_f64_2(ptr %v60, ptr %p167, i64 %v24, i64 %v26, i64 %v137, i64 %v157)
  br label %done170
done170:
  br label %done162
done162:
  %v171 = or i1 %v147, %v158
  br i1 %v171, label %yes172, label %done173
yes172:
  %v174 = mul nsw i64 %v154, %v36
  %v175 = add nsw i64 0, %v174
  %v176 = mul nsw i64 %i141, %v34
  %v177 = add nsw i64 %v175, %v176
  %p178 = getelementptr double, ptr %p115, i64 %v177
  %v179 = xor i1 %v126, true
  br i1 %v179, label %yes180, label %done181
yes180:
  call fastcc void @km_pack_f64_8(ptr %p66, ptr %p178, i64 %v34, i64 %v36, i64 %v144, i64 %v157)
  br label %done181
done181:
  br label %done173
done173:
  %v182 = icmp eq i64 %i151, 0
  %v183 = add nsw i64 %i151, 1
  %v184 = icmp eq i64 %v183, %v129
  br label %head185
head185:
  %i188 = phi i64 [ 0, %done173 ], [ %v217, %done193 ]
  %v189 = icmp slt i64 %i188, %v144
  br i1 %v189, label %body186, label %done187
body186:
  %v190 = add nsw i64 %i141, %i188
  br label %head191
head191:
  %i194 = phi i64 [ 0, %body186 ], [ %v216, %body192 ]
  %v195 = icmp slt i64 %i194, %v137
  br i1 %v195, label %body192, label %done193
body192:
  %v196 = add nsw i64 %i134, %i194
  %v197 = mul nsw i64 %i194, %v157
  %p198 = getelementptr double, ptr %v60, i64 %v197
  %v199 = mul nsw i64 %i188, %v157
  %p200 = getelementptr double, ptr %p66, i64 %v199
  %v201 = mul nsw i64 %v196, %v44
  %v202 = add nsw i64 0, %v201
  %v203 = mul nsw i64 %v190, %v46
  %v204 = add nsw i64 %v202, %v203
  %p205 = getelementptr double, ptr %p122, i64 %v204
  %v206 = sub nsw i64 %v137, %i194
  %v207 = call i64 @llvm.smin.i64(i64 2, i64 %v206)
  %v208 = sub nsw i64 %v144, %i188
  %v209 = call i64 @llvm.smin.i64(i64 8, i64 %v208)
  %v210 = sdiv i64 %i194, 2
  %v211 = mul nsw i64 %v210, %v73
  %v212 = sdiv i64 %i188, 8
  %v213 = add nsw i64 %v211, %v212
  %v214 = mul nsw i64 %v213, 128
  %p215 = getelementptr i8, ptr %p72, i64 %v214
  call fastcc void @km_tile_fast(ptr %integers, ptr %numbers, ptr %p198, ptr %p200, ptr %p205, ptr %p72, ptr %p215, i64 %v157, i64 %v154, i64 %v207, i64 %v209, i64 -2, i1 %v182, i1 %v184)
  %v216 = add nsw i64 %i194, 2
  br label %head191
done193:
  %v217 = add nsw i64 %i188, 8
  br label %head185
done187:
  %v218 = add nsw i64 %i151, 1
  br label %head148
done150:
  %v219 = add nsw i64 %i141, 384
  br label %head138
done140:
  %v220 = add nsw i64 %i134, 32
  br label %head131
done133:
  %v221 = add nsw i64 %item85, %v91
  br label %head82
done84:
  ret void
}

define internal fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %x_x0, ptr %x_x1, ptr %out_0, ptr %cells, ptr %state, i64 %depth, i64 %position, i64 %rows, i64 %columns, i64 %skew, i1 %first, i1 %last) noinline {
entry:
  %room101 = alloca double, i64 16, align 64
  %p1 = getelementptr double, ptr %numbers, i64 0
  %v2 = load double, ptr %p1, align 8
  br label %head3
head3:
  %k6 = phi i64 [ 0, %entry ], [ %v50, %body4 ]
  %s7 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v27, %body4 ]
  %s8 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v35, %body4 ]
  %s9 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v45, %body4 ]
  %s10 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v49, %body4 ]
  %v11 = icmp slt i64 %k6, %depth
  br i1 %v11, label %body4, label %done5
body4:
  %v12 = mul nsw i64 %k6, 2
  %v13 = add nsw i64 %v12, 0
  %p14 = getelementptr double, ptr %x_x0, i64 %v13
  %v15 = load double, ptr %p14, align 8
  %v16 = mul nsw i64 %k6, 8
  %v17 = add nsw i64 %v16, 0
  %p18 = getelementptr double, ptr %x_x1, i64 %v17
  %v19 = load <4 x double>, ptr %p18, align 32
  %v20 = insertelement <4 x double> poison, double %v15, i64 0
  %v21 = shufflevector <4 x double> %v20, <4 x double> poison, <4 x i32> zeroinitializer
  %v22 = fsub contract <4 x double> %v21, %v19
  %v23 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v22)
  %v24 = insertelement <4 x double> poison, double %v2, i64 0
  %v25 = shufflevector <4 x double> %v24, <4 x double> poison, <4 x i32> zeroinitializer
  %v26 = call <4 x double> @km_pow_v4f64(<4 x double> %v23, <4 x double> %v25)
  %v27 = fadd contract <4 x double> %s7, %v26
  %v28 = mul nsw i64 %k6, 8
  %v29 = add nsw i64 %v28, 4
  %p30 = getelementptr double, ptr %x_x1, i64 %v29
  %v31 = load <4 x double>, ptr %p30, align 32
  %v32 = fsub contract <4 x double> %v21, %v31
  %v33 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v32)
  %v34 = call <4 x double> @km_pow_v4f64(<4 x double> %v33, <4 x double> %v25)
  %v35 = fadd contract <4 x double> %s8, %v34
  %v36 = mul nsw i64 %k6, 2
  %v37 = add nsw i64 %v36, 1
  %p38 = getelementptr double, ptr %x_x0, i64 %v37
  %v39 = load double, ptr %p38, align 8
  %v40 = insertelement <4 x double> poison, double %v39, i64 0
  %v41 = shufflevector <4 x double> %v40, <4 x double> poison, <4 x i32> zeroinitializer
  %v42 = fsub contract <4 x double> %v41, %v19
  %v43 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v42)
  %v44 = call <4 x double> @km_pow_v4f64(<4 x double> %v43, <4 x double> %v25)
  %v45 = fadd contract <4 x double> %s9, %v44
  %v46 = fsub contract <4 x double> %v41, %v31
  %v47 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v46)
  %v48 = call <4 x double> @km_pow_v4f64(<4 x double> %v47, <4 x double> %v25)
  %v49 = fadd contract <4 x double> %s10, %v48
  %v50 = add nsw i64 %k6, 1
  br label %head3, !llvm.loop !0
done5:
  br i1 %first, label %ready52, label %join51
join51:
  %p53 = getelementptr i8, ptr %state, i64 0
  %v54 = load <4 x double>, ptr %p53, align 8
  %p55 = getelementptr i8, ptr %state, i64 32
  %v56 = load <4 x double>, ptr %p55, align 8
  %p57 = getelementptr i8, ptr %state, i64 64
  %v58 = load <4 x double>, ptr %p57, align 8
  %p59 = getelementptr i8, ptr %state, i64 96
  %v60 = load <4 x double>, ptr %p59, align 8
  %v61 = fadd contract <4 x double> %v54, %s7
  %v62 = fadd contract <4 x double> %v56, %s8
  %v63 = fadd contract <4 x double> %v58, %s9
  %v64 = fadd contract <4 x double> %v60, %s10
  br label %ready52
ready52:
  %v65 = phi <4 x double> [ %s7, %done5 ], [ %v61, %join51 ]
  %v66 = phi <4 x double> [ %s8, %done5 ], [ %v62, %join51 ]
  %v67 = phi <4 x double> [ %s9, %done5 ], [ %v63, %join51 ]
  %v68 = phi <4 x double> [ %s10, %done5 ], [ %v64, %join51 ]
  br i1 %last, label %finish70, label %keep69
keep69:
  %p71 = getelementptr i8, ptr %state, i64 0
  store <4 x double> %v65, ptr %p71, align 8
  %p72 = getelementptr i8, ptr %state, i64 32
  store <4 x double> %v66, ptr %p72, align 8
  %p73 = getelementptr i8, ptr %state, i64 64
  store <4 x double> %v67, ptr %p73, align 8
  %p74 = getelementptr i8, ptr %state, i64 96
  store <4 x double> %v68, ptr %p74, align 8
  ret void
finish70:
  %p75 = getelementptr i64, ptr %integers, i64 25
  %v76 = load i64, ptr %p75, align 8
  %p77 = getelementptr i64, ptr %integers, i64 26
  %v78 = load i64, ptr %p77, align 8
  %v79 = icmp eq i64 %columns, 8
  %v80 = icmp eq i64 %v78, 1
  %v81 = and i1 %v79, %v80
  %v82 = icmp sle i64 %skew, -1
  %v83 = and i1 %v81, %v82
  br i1 %v83, label %whole84, label %other85
whole84:
  %v87 = icmp sgt i64 %rows, 0
  br i1 %v87, label %yes88, label %done89
yes88:
  %v90 = mul nsw i64 %v76, 0
  %p91 = getelementptr double, ptr %out_0, i64 %v90
  %p92 = getelementptr double, ptr %p91, i64 0
  store <4 x double> %v65, ptr %p92, align 8
  %p93 = getelementptr double, ptr %p91, i64 4
  store <4 x double> %v66, ptr %p93, align 8
  br label %done89
done89:
  %v94 = icmp sgt i64 %rows, 1
  br i1 %v94, label %yes95, label %done96
yes95:
  %v97 = mul nsw i64 %v76, 1
  %p98 = getelementptr double, ptr %out_0, i64 %v97
  %p99 = getelementptr double, ptr %p98, i64 0
  store <4 x double> %v67, ptr %p99, align 8
  %p100 = getelementptr double, ptr %p98, i64 4
  store <4 x double> %v68, ptr %p100, align 8
  br label %done96
done96:
  br label %done86
other85:
  %p102 = getelementptr double, ptr %room101, i64 0
  store <4 x double> %v65, ptr %p102, align 8
  %p103 = getelementptr double, ptr %room101, i64 4
  store <4 x double> %v66, ptr %p103, align 8
  %p104 = getelementptr double, ptr %room101, i64 8
  store <4 x double> %v67, ptr %p104, align 8
  %p105 = getelementptr double, ptr %room101, i64 12
  store <4 x double> %v68, ptr %p105, align 8
  call fastcc void @km_scatter_f64(ptr %out_0, ptr %room101, i64 %v76, i64 %v78, i64 %rows, i64 %columns, i64 %skew)
  br label %done86
done86:
  ret void
}

define internal fastcc void @km_tile_fast(ptr %integers, ptr %numbers, ptr %x_x0, ptr %x_x1, ptr %out_0, ptr %cells, ptr %state, i64 %depth, i64 %position, i64 %rows, i64 %columns, i64 %skew, i1 %first, i1 %last) noinline {
entry:
  %room149 = alloca double, i64 16, align 64
  %p1 = getelementptr double, ptr %numbers, i64 0
  %v2 = load double, ptr %p1, align 8
  %v3 = call double @llvm.fabs.f64(double %v2)
  %v4 = fcmp ugt double %v3, 0x4030000000000000
  %v5 = fdiv double 0x408FE80000000000, %v3
  %v6 = call i64 @llvm.fptosi.sat.i64.f64(double %v5)
  %v7 = call i64 @llvm.smin.i64(i64 %v6, i64 1021)
  %v8 = sub i64 1023, %v7
  %v9 = shl i64 %v8, 52
  %v10 = shl i64 %v7, 53
  %v11 = fcmp ogt double %v2, zeroinitializer
  %v12 = fcmp oeq double %v2, zeroinitializer
  %v13 = select i1 %v12, double 0x3FF0000000000000, double 0x7FF0000000000000
  %v14 = select i1 %v11, double zeroinitializer, double %v13
  br label %head15
head15:
  %k18 = phi i64 [ 0, %entry ], [ %v91, %body16 ]
  %s19 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v50, %body16 ]
  %s20 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v64, %body16 ]
  %s21 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v80, %body16 ]
  %s22 = phi <4 x double> [ splat (double 0x0000000000000000), %entry ], [ %v90, %body16 ]
  %s23 = phi <4 x i64> [ zeroinitializer, %entry ], [ %v87, %body16 ]
  %v24 = icmp slt i64 %k18, %depth
  br i1 %v24, label %body16, label %done17
body16:
  %v25 = mul nsw i64 %k18, 2
  %v26 = add nsw i64 %v25, 0
  %p27 = getelementptr double, ptr %x_x0, i64 %v26
  %v28 = load double, ptr %p27, align 8
  %v29 = mul nsw i64 %k18, 8
  %v30 = add nsw i64 %v29, 0
  %p31 = getelementptr double, ptr %x_x1, i64 %v30
  %v32 = load <4 x double>, ptr %p31, align 32
  %v33 = insertelement <4 x double> poison, double %v28, i64 0
  %v34 = shufflevector <4 x double> %v33, <4 x double> poison, <4 x i32> zeroinitializer
  %v35 = fsub contract <4 x double> %v34, %v32
  %v36 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v35)
  %v37 = insertelement <4 x double> poison, double %v2, i64 0
  %v38 = shufflevector <4 x double> %v37, <4 x double> poison, <4 x i32> zeroinitializer
  %v39 = fcmp oeq <4 x double> %v36, zeroinitializer
  %v40 = select <4 x i1> %v39, <4 x double> splat (double 0x3FF0000000000000), <4 x double> %v36
  %v41 = bitcast <4 x double> %v40 to <4 x i64>
  %v42 = insertelement <4 x i64> poison, i64 %v9, i64 0
  %v43 = shufflevector <4 x i64> %v42, <4 x i64> poison, <4 x i32> zeroinitializer
  %v44 = sub <4 x i64> %v41, %v43
  %v45 = call <4 x i64> @llvm.umax.v4i64(<4 x i64> %s23, <4 x i64> %v44)
  %v46 = call <4 x double> @km_pow_normal_v4f64(<4 x double> %v40, <4 x double> %v38)
  %v47 = insertelement <4 x double> poison, double %v14, i64 0
  %v48 = shufflevector <4 x double> %v47, <4 x double> poison, <4 x i32> zeroinitializer
  %v49 = select <4 x i1> %v39, <4 x double> %v48, <4 x double> %v46
  %v50 = fadd contract <4 x double> %s19, %v49
  %v51 = mul nsw i64 %k18, 8
  %v52 = add nsw i64 %v51, 4
  %p53 = getelementptr double, ptr %x_x1, i64 %v52
  %v54 = load <4 x double>, ptr %p53, align 32
  %v55 = fsub contract <4 x double> %v34, %v54
  %v56 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v55)
  %v57 = fcmp oeq <4 x double> %v56, zeroinitializer
  %v58 = select <4 x i1> %v57, <4 x double> splat (double 0x3FF0000000000000), <4 x double> %v56
  %v59 = bitcast <4 x double> %v58 to <4 x i64>
  %v60 = sub <4 x i64> %v59, %v43
  %v61 = call <4 x i64> @llvm.umax.v4i64(<4 x i64> %v45, <4 x i64> %v60)
  %v62 = call <4 x double> @km_pow_normal_v4f64(<4 x double> %v58, <4 x double> %v38)
  %v63 = select <4 x i1> %v57, <4 x double> %v48, <4 x double> %v62
  %v64 = fadd contract <4 x double> %s20, %v63
  %v65 = mul nsw i64 %k18, 2
  %v66 = add nsw i64 %v65, 1
  %p67 = getelementptr double, ptr %x_x0, i64 %v66
  %v68 = load double, ptr %p67, align 8
  %v69 = insertelement <4 x double> poison, double %v68, i64 0
  %v70 = shufflevector <4 x double> %v69, <4 x double> poison, <4 x i32> zeroinitializer
  %v71 = fsub contract <4 x double> %v70, %v32
  %v72 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v71)
  %v73 = fcmp oeq <4 x double> %v72, zeroinitializer
  %v74 = select <4 x i1> %v73, <4 x double> splat (double 0x3FF0000000000000), <4 x double> %v72
  %v75 = bitcast <4 x double> %v74 to <4 x i64>
  %v76 = sub <4 x i64> %v75, %v43
  %v77 = call <4 x i64> @llvm.umax.v4i64(<4 x i64> %v61, <4 x i64> %v76)
  %v78 = call <4 x double> @km_pow_normal_v4f64(<4 x double> %v74, <4 x double> %v38)
  %v79 = select <4 x i1> %v73, <4 x double> %v48, <4 x double> %v78
  %v80 = fadd contract <4 x double> %s21, %v79
  %v81 = fsub contract <4 x double> %v70, %v54
  %v82 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %v81)
  %v83 = fcmp oeq <4 x double> %v82, zeroinitializer
  %v84 = select <4 x i1> %v83, <4 x double> splat (double 0x3FF0000000000000), <4 x double> %v82
  %v85 = bitcast <4 x double> %v84 to <4 x i64>
  %v86 = sub <4 x i64> %v85, %v43
  %v87 = call <4 x i64> @llvm.umax.v4i64(<4 x i64> %v77, <4 x i64> %v86)
  %v88 = call <4 x double> @km_pow_normal_v4f64(<4 x double> %v84, <4 x double> %v38)
  %v89 = select <4 x i1> %v83, <4 x double> %v48, <4 x double> %v88
  %v90 = fadd contract <4 x double> %s22, %v89
  %v91 = add nsw i64 %k18, 1
  br label %head15, !llvm.loop !2
done17:
  %v94 = insertelement <4 x i64> poison, i64 %v10, i64 0
  %v95 = shufflevector <4 x i64> %v94, <4 x i64> poison, <4 x i32> zeroinitializer
  %v96 = icmp ugt <4 x i64> %s23, %v95
  %v97 = call i1 @llvm.vector.reduce.or.v4i1(<4 x i1> %v96)
  %v98 = or i1 %v4, %v97
  br i1 %v98, label %again92, label %fine93
again92:
  call fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %x_x0, ptr %x_x1, ptr %out_0, ptr %cells, ptr %state, i64 %depth, i64 %position, i64 %rows, i64 %columns, i64 %skew, i1 %first, i1 %last)
  ret void
fine93:
  br i1 %first, label %ready100, label %join99
join99:
  %p101 = getelementptr i8, ptr %state, i64 0
  %v102 = load <4 x double>, ptr %p101, align 8
  %p103 = getelementptr i8, ptr %state, i64 32
  %v104 = load <4 x double>, ptr %p103, align 8
  %p105 = getelementptr i8, ptr %state, i64 64
  %v106 = load <4 x double>, ptr %p105, align 8
  %p107 = getelementptr i8, ptr %state, i64 96
  %v108 = load <4 x double>, ptr %p107, align 8
  %v109 = fadd contract <4 x double> %v102, %s19
  %v110 = fadd contract <4 x double> %v104, %s20
  %v111 = fadd contract <4 x double> %v106, %s21
  %v112 = fadd contract <4 x double> %v108, %s22
  br label %ready100
ready100:
  %v113 = phi <4 x double> [ %s19, %fine93 ], [ %v109, %join99 ]
  %v114 = phi <4 x double> [ %s20, %fine93 ], [ %v110, %join99 ]
  %v115 = phi <4 x double> [ %s21, %fine93 ], [ %v111, %join99 ]
  %v116 = phi <4 x double> [ %s22, %fine93 ], [ %v112, %join99 ]
  br i1 %last, label %finish118, label %keep117
keep117:
  %p119 = getelementptr i8, ptr %state, i64 0
  store <4 x double> %v113, ptr %p119, align 8
  %p120 = getelementptr i8, ptr %state, i64 32
  store <4 x double> %v114, ptr %p120, align 8
  %p121 = getelementptr i8, ptr %state, i64 64
  store <4 x double> %v115, ptr %p121, align 8
  %p122 = getelementptr i8, ptr %state, i64 96
  store <4 x double> %v116, ptr %p122, align 8
  ret void
finish118:
  %p123 = getelementptr i64, ptr %integers, i64 25
  %v124 = load i64, ptr %p123, align 8
  %p125 = getelementptr i64, ptr %integers, i64 26
  %v126 = load i64, ptr %p125, align 8
  %v127 = icmp eq i64 %columns, 8
  %v128 = icmp eq i64 %v126, 1
  %v129 = and i1 %v127, %v128
  %v130 = icmp sle i64 %skew, -1
  %v131 = and i1 %v129, %v130
  br i1 %v131, label %whole132, label %other133
whole132:
  %v135 = icmp sgt i64 %rows, 0
  br i1 %v135, label %yes136, label %done137
yes136:
  %v138 = mul nsw i64 %v124, 0
  %p139 = getelementptr double, ptr %out_0, i64 %v138
  %p140 = getelementptr double, ptr %p139, i64 0
  store <4 x double> %v113, ptr %p140, align 8
  %p141 = getelementptr double, ptr %p139, i64 4
  store <4 x double> %v114, ptr %p141, align 8
  br label %done137
done137:
  %v142 = icmp sgt i64 %rows, 1
  br i1 %v142, label %yes143, label %done144
yes143:
  %v145 = mul nsw i64 %v124, 1
  %p146 = getelementptr double, ptr %out_0, i64 %v145
  %p147 = getelementptr double, ptr %p146, i64 0
  store <4 x double> %v115, ptr %p147, align 8
  %p148 = getelementptr double, ptr %p146, i64 4
  store <4 x double> %v116, ptr %p148, align 8
  br label %done144
done144:
  br label %done134
other133:
  %p150 = getelementptr double, ptr %room149, i64 0
  store <4 x double> %v113, ptr %p150, align 8
  %p151 = getelementptr double, ptr %room149, i64 4
  store <4 x double> %v114, ptr %p151, align 8
  %p152 = getelementptr double, ptr %room149, i64 8
  store <4 x double> %v115, ptr %p152, align 8
  %p153 = getelementptr double, ptr %room149, i64 12
  store <4 x double> %v116, ptr %p153, align 8
  call fastcc void @km_scatter_f64(ptr %out_0, ptr %room149, i64 %v124, i64 %v126, i64 %rows, i64 %columns, i64 %skew)
  br label %done134
done134:
  ret void
}

define internal fastcc void @km_pack_f64_2(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 1
  %v3 = sdiv i64 %v2, 2
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v96, %done77 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 2
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr double, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr double, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 2)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 2
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr double, ptr %p13, i64 %v28
  %v30 = load <2 x double>, ptr %p29, align 8
  %v31 = mul nsw i64 %i26, 2
  %p32 = getelementptr double, ptr %p15, i64 %v31
  store <2 x double> %v30, ptr %p32, align 8
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 2
  %v39 = mul nsw i64 %v38, 2
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v73, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v72, %body46 ]
  %v49 = icmp slt i64 %i48, 2
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr double, ptr %p13, i64 %v53
  %v55 = load <2 x double>, ptr %p54, align 8
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr double, ptr %p13, i64 %v59
  %v61 = load <2 x double>, ptr %p60, align 8
  %v62 = shufflevector <2 x double> %v55, <2 x double> %v61, <2 x i32> <i32 0, i32 2>
  %v63 = shufflevector <2 x double> %v55, <2 x double> %v61, <2 x i32> <i32 1, i32 3>
  %v64 = add nsw i64 %i43, 0
  %v65 = mul nsw i64 %v64, 2
  %v66 = add nsw i64 %v65, %i48
  %p67 = getelementptr double, ptr %p15, i64 %v66
  store <2 x double> %v62, ptr %p67, align 8
  %v68 = add nsw i64 %i43, 1
  %v69 = mul nsw i64 %v68, 2
  %v70 = add nsw i64 %v69, %i48
  %p71 = getelementptr double, ptr %p15, i64 %v70
  store <2 x double> %v63, ptr %p71, align 8
  %v72 = add nsw i64 %i48, 2
  br label %head45
done47:
  %v73 = add nsw i64 %i43, 2
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v74 = load i64, ptr %room1, align 8
  br label %head75
head75:
  %i78 = phi i64 [ %v74, %done37 ], [ %v95, %done82 ]
  %v79 = icmp slt i64 %i78, %depth
  br i1 %v79, label %body76, label %done77
body76:
  br label %head80
head80:
  %i83 = phi i64 [ 0, %body76 ], [ %v94, %body81 ]
  %v84 = icmp slt i64 %i83, 2
  br i1 %v84, label %body81, label %done82
body81:
  %v85 = call i64 @llvm.smin.i64(i64 %i83, i64 %v18)
  %v86 = mul nsw i64 %v85, %run
  %v87 = mul nsw i64 %i78, %stride
  %v88 = add nsw i64 %v86, %v87
  %p89 = getelementptr double, ptr %p13, i64 %v88
  %v90 = load double, ptr %p89, align 8
  %v91 = mul nsw i64 %i78, 2
  %v92 = add nsw i64 %v91, %i83
  %p93 = getelementptr double, ptr %p15, i64 %v92
  store double %v90, ptr %p93, align 8
  %v94 = add nsw i64 %i83, 1
  br label %head80
done82:
  %v95 = add nsw i64 %i78, 1
  br label %head75
done77:
  %v96 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_pack_f64_8(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 7
  %v3 = sdiv i64 %v2, 8
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v122, %done103 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 8
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr double, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr double, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 8)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 8
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr double, ptr %p13, i64 %v28
  %v30 = load <8 x double>, ptr %p29, align 8
  %v31 = mul nsw i64 %i26, 8
  %p32 = getelementptr double, ptr %p15, i64 %v31
  store <8 x double> %v30, ptr %p32, align 8
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 4
  %v39 = mul nsw i64 %v38, 4
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v99, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v98, %body46 ]
  %v49 = icmp slt i64 %i48, 8
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr double, ptr %p13, i64 %v53
  %v55 = load <4 x double>, ptr %p54, align 8
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr double, ptr %p13, i64 %v59
  %v61 = load <4 x double>, ptr %p60, align 8
  %v62 = add nsw i64 %i48, 2
  %v63 = call i64 @llvm.smin.i64(i64 %v62, i64 %v18)
  %v64 = mul nsw i64 %v63, %run
  %v65 = add nsw i64 %v64, %i43
  %p66 = getelementptr double, ptr %p13, i64 %v65
  %v67 = load <4 x double>, ptr %p66, align 8
  %v68 = add nsw i64 %i48, 3
  %v69 = call i64 @llvm.smin.i64(i64 %v68, i64 %v18)
  %v70 = mul nsw i64 %v69, %run
  %v71 = add nsw i64 %v70, %i43
  %p72 = getelementptr double, ptr %p13, i64 %v71
  %v73 = load <4 x double>, ptr %p72, align 8
  %v74 = shufflevector <4 x double> %v55, <4 x double> %v61, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v75 = shufflevector <4 x double> %v55, <4 x double> %v61, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v76 = shufflevector <4 x double> %v67, <4 x double> %v73, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v77 = shufflevector <4 x double> %v67, <4 x double> %v73, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v78 = shufflevector <4 x double> %v74, <4 x double> %v76, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v79 = shufflevector <4 x double> %v74, <4 x double> %v76, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v80 = shufflevector <4 x double> %v75, <4 x double> %v77, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v81 = shufflevector <4 x double> %v75, <4 x double> %v77, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v82 = add nsw i64 %i43, 0
  %v83 = mul nsw i64 %v82, 8
  %v84 = add nsw i64 %v83, %i48
  %p85 = getelementptr double, ptr %p15, i64 %v84
  store <4 x double> %v78, ptr %p85, align 8
  %v86 = add nsw i64 %i43, 1
  %v87 = mul nsw i64 %v86, 8
  %v88 = add nsw i64 %v87, %i48
  %p89 = getelementptr double, ptr %p15, i64 %v88
  store <4 x double> %v80, ptr %p89, align 8
  %v90 = add nsw i64 %i43, 2
  %v91 = mul nsw i64 %v90, 8
  %v92 = add nsw i64 %v91, %i48
  %p93 = getelementptr double, ptr %p15, i64 %v92
  store <4 x double> %v79, ptr %p93, align 8
  %v94 = add nsw i64 %i43, 3
  %v95 = mul nsw i64 %v94, 8
  %v96 = add nsw i64 %v95, %i48
  %p97 = getelementptr double, ptr %p15, i64 %v96
  store <4 x double> %v81, ptr %p97, align 8
  %v98 = add nsw i64 %i48, 4
  br label %head45
done47:
  %v99 = add nsw i64 %i43, 4
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v100 = load i64, ptr %room1, align 8
  br label %head101
head101:
  %i104 = phi i64 [ %v100, %done37 ], [ %v121, %done108 ]
  %v105 = icmp slt i64 %i104, %depth
  br i1 %v105, label %body102, label %done103
body102:
  br label %head106
head106:
  %i109 = phi i64 [ 0, %body102 ], [ %v120, %body107 ]
  %v110 = icmp slt i64 %i109, 8
  br i1 %v110, label %body107, label %done108
body107:
  %v111 = call i64 @llvm.smin.i64(i64 %i109, i64 %v18)
  %v112 = mul nsw i64 %v111, %run
  %v113 = mul nsw i64 %i104, %stride
  %v114 = add nsw i64 %v112, %v113
  %p115 = getelementptr double, ptr %p13, i64 %v114
  %v116 = load double, ptr %p115, align 8
  %v117 = mul nsw i64 %i104, 8
  %v118 = add nsw i64 %v117, %i109
  %p119 = getelementptr double, ptr %p15, i64 %v118
  store double %v116, ptr %p119, align 8
  %v120 = add nsw i64 %i109, 1
  br label %head106
done108:
  %v121 = add nsw i64 %i104, 1
  br label %head101
done103:
  %v122 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_scatter_f64(ptr %into, ptr noalias %from, i64 %sm, i64 %sn, i64 %rows, i64 %columns, i64 %skew) noinline {
entry:
  br label %head1
head1:
  %i4 = phi i64 [ 0, %entry ], [ %v22, %done10 ]
  %v5 = icmp slt i64 %i4, %rows
  br i1 %v5, label %body2, label %done3
body2:
  %v6 = add nsw i64 %i4, %skew
  %v7 = call i64 @llvm.smax.i64(i64 0, i64 %v6)
  br label %head8
head8:
  %i11 = phi i64 [ %v7, %body2 ], [ %v21, %body9 ]
  %v12 = icmp slt i64 %i11, %columns
  br i1 %v12, label %body9, label %done10
body9:
  %v13 = mul nsw i64 %i4, 8
  %v14 = add nsw i64 %v13, %i11
  %p15 = getelementptr double, ptr %from, i64 %v14
  %v16 = load double, ptr %p15, align 8
  %v17 = mul nsw i64 %i4, %sm
  %v18 = mul nsw i64 %i11, %sn
  %v19 = add nsw i64 %v17, %v18
  %p20 = getelementptr double, ptr %into, i64 %v19
  store double %v16, ptr %p20, align 8
  %v21 = add nsw i64 %i11, 1
  br label %head8
done10:
  %v22 = add nsw i64 %i4, 1
  br label %head1
done3:
  ret void
}

define internal <4 x double> @km_pow_v4f64(<4 x double> %x0, <4 x double> %x1) noinline {
entry:
  %v1 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %x0)
  %v2 = call <4 x double> @km_pow_abs_v4f64(<4 x double> %v1, <4 x double> %x1)
  %v3 = call <4 x double> @llvm.floor.v4f64(<4 x double> %x1)
  %v4 = fcmp oeq <4 x double> %v3, %x1
  %v5 = fmul <4 x double> %x1, splat (double 0x3FE0000000000000)
  %v6 = call <4 x double> @llvm.floor.v4f64(<4 x double> %v5)
  %v7 = fcmp une <4 x double> %v6, %v5
  %v8 = and <4 x i1> %v4, %v7
  %v9 = bitcast <4 x double> %x0 to <4 x i64>
  %v10 = icmp slt <4 x i64> %v9, zeroinitializer
  %v11 = and <4 x i1> %v10, %v8
  %v12 = fneg <4 x double> %v2
  %v13 = select <4 x i1> %v11, <4 x double> %v12, <4 x double> %v2
  %v14 = fcmp olt <4 x double> %x0, splat (double 0x0000000000000000)
  %v15 = fcmp ogt <4 x double> %x0, splat (double 0xFFF0000000000000)
  %v16 = and <4 x i1> %v14, %v15
  %v17 = xor <4 x i1> %v4, splat (i1 true)
  %v18 = and <4 x i1> %v16, %v17
  %v19 = select <4 x i1> %v18, <4 x double> splat (double 0x7FF8000000000000), <4 x double> %v13
  ret <4 x double> %v19
}

define internal <4 x double> @km_pow_abs_v4f64(<4 x double> %x0, <4 x double> %x1) noinline {
entry:
  %v1 = fcmp olt <4 x double> %x0, splat (double 0x0010000000000000)
  %v2 = fmul <4 x double> %x0, splat (double 0x4350000000000000)
  %v3 = select <4 x i1> %v1, <4 x double> %v2, <4 x double> %x0
  %v4 = bitcast <4 x double> %v3 to <4 x i64>
  %v5 = bitcast <4 x double> splat (double 0x3FE6A09E667F3BCD) to <4 x i64>
  %v6 = sub <4 x i64> %v4, %v5
  %v7 = ashr <4 x i64> %v6, splat (i64 52)
  %v8 = shl <4 x i64> %v7, splat (i64 52)
  %v9 = sub <4 x i64> %v4, %v8
  %v10 = bitcast <4 x i64> %v9 to <4 x double>
  %v11 = select <4 x i1> %v1, <4 x i64> splat (i64 54), <4 x i64> splat (i64 0)
  %v12 = sub <4 x i64> %v7, %v11
  %v13 = sitofp <4 x i64> %v12 to <4 x double>
  %v14 = fsub <4 x double> %v10, splat (double 0x3FF0000000000000)
  %v15 = fadd <4 x double> %v10, splat (double 0x3FF0000000000000)
  %v16 = fsub <4 x double> %v15, splat (double 0x3FF0000000000000)
  %v17 = fsub <4 x double> %v10, %v16
  %v18 = fdiv <4 x double> %v14, %v15
  %v19 = fneg <4 x double> %v18
  %v20 = fneg <4 x double> %v18
  %v21 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v20, <4 x double> %v15, <4 x double> %v14)
  %v22 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v19, <4 x double> %v17, <4 x double> %v21)
  %v23 = fdiv <4 x double> %v22, %v15
  %v24 = fmul <4 x double> %v18, %v18
  %v25 = fmul <4 x double> %v18, %v24
  %v26 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3FB0C03CC5BC65F5), <4 x double> %v24, <4 x double> splat (double 0x3FB0FBE913E56768))
  %v27 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v26, <4 x double> %v24, <4 x double> splat (double 0x3FB3B1C35868035B))
  %v28 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v27, <4 x double> %v24, <4 x double> splat (double 0x3FB745CF903BF098))
  %v29 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v28, <4 x double> %v24, <4 x double> splat (double 0x3FBC71C72015B06F))
  %v30 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v29, <4 x double> %v24, <4 x double> splat (double 0x3FC2492492476CBA))
  %v31 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v30, <4 x double> %v24, <4 x double> splat (double 0x3FC9999999999A38))
  %v32 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v31, <4 x double> %v24, <4 x double> splat (double 0x3FD5555555555555))
  %v33 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v25, <4 x double> %v32, <4 x double> %v23)
  %v34 = fadd <4 x double> %v18, %v33
  %v35 = fsub <4 x double> %v34, %v18
  %v36 = fsub <4 x double> %v33, %v35
  %v37 = fmul <4 x double> %v34, splat (double 0x40071547652B82FE)
  %v38 = fneg <4 x double> %v37
  %v39 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x40071547652B82FE), <4 x double> %v34, <4 x double> %v38)
  %v40 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x40071547652B82FE), <4 x double> %v36, <4 x double> %v39)
  %v41 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3C8777D0FFDA0D24), <4 x double> %v34, <4 x double> %v40)
  %v42 = fmul <4 x double> %x1, %v13
  %v43 = fmul <4 x double> %x1, %v37
  %v44 = fneg <4 x double> %v42
  %v45 = call <4 x double> @llvm.fma.v4f64(<4 x double> %x1, <4 x double> %v13, <4 x double> %v44)
  %v46 = fneg <4 x double> %v43
  %v47 = call <4 x double> @llvm.fma.v4f64(<4 x double> %x1, <4 x double> %v37, <4 x double> %v46)
  %v48 = call <4 x double> @llvm.fma.v4f64(<4 x double> %x1, <4 x double> %v41, <4 x double> %v47)
  %v49 = fadd <4 x double> %v42, %v43
  %v50 = fsub <4 x double> %v49, %v42
  %v51 = fsub <4 x double> %v49, %v50
  %v52 = fsub <4 x double> %v42, %v51
  %v53 = fsub <4 x double> %v43, %v50
  %v54 = fadd <4 x double> %v52, %v53
  %v55 = fcmp ogt <4 x double> %v49, splat (double 0x4091300000000000)
  %v56 = select <4 x i1> %v55, <4 x double> splat (double 0x4091300000000000), <4 x double> %v49
  %v57 = fcmp olt <4 x double> %v56, splat (double 0xC091300000000000)
  %v58 = select <4 x i1> %v57, <4 x double> splat (double 0xC091300000000000), <4 x double> %v56
  %v59 = fadd <4 x double> %v58, splat (double 0x4338000000000000)
  %v60 = fsub <4 x double> %v59, splat (double 0x4338000000000000)
  %v61 = bitcast <4 x double> splat (double 0x4338000000000000) to <4 x i64>
  %v62 = bitcast <4 x double> %v59 to <4 x i64>
  %v63 = sub <4 x i64> %v62, %v61
  %v64 = fcmp oeq <4 x double> %v49, %v58
  %v65 = fsub <4 x double> %v58, %v60
  %v66 = fadd <4 x double> %v45, %v48
  %v67 = fadd <4 x double> %v54, %v66
  %v68 = select <4 x i1> %v64, <4 x double> %v67, <4 x double> splat (double 0x0000000000000000)
  %v69 = fadd <4 x double> %v65, %v68
  %v70 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3DBC4A2AAA2B01D9), <4 x double> %v69, <4 x double> splat (double 0x3DFE9EC3D7558475))
  %v71 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v70, <4 x double> %v69, <4 x double> splat (double 0x3E3E4CF10D1896BE))
  %v72 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v71, <4 x double> %v69, <4 x double> splat (double 0x3E7B524EBC089F66))
  %v73 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v72, <4 x double> %v69, <4 x double> splat (double 0x3EB62C02242BB0BD))
  %v74 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v73, <4 x double> %v69, <4 x double> splat (double 0x3EEFFCBFC6DAD6AD))
  %v75 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v74, <4 x double> %v69, <4 x double> splat (double 0x3F2430912F86B7D4))
  %v76 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v75, <4 x double> %v69, <4 x double> splat (double 0x3F55D87FE78A3F8C))
  %v77 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v76, <4 x double> %v69, <4 x double> splat (double 0x3F83B2AB6FBA4E79))
  %v78 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v77, <4 x double> %v69, <4 x double> splat (double 0x3FAC6B08D704A0C6))
  %v79 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v78, <4 x double> %v69, <4 x double> splat (double 0x3FCEBFBDFF82C58F))
  %v80 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v79, <4 x double> %v69, <4 x double> splat (double 0x3FE62E42FEFA39EF))
  %v81 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v69, <4 x double> %v80, <4 x double> splat (double 0x3FF0000000000000))
  %v82 = ashr <4 x i64> %v63, splat (i64 1)
  %v83 = add <4 x i64> %v82, splat (i64 1023)
  %v84 = shl <4 x i64> %v83, splat (i64 52)
  %v85 = bitcast <4 x i64> %v84 to <4 x double>
  %v86 = fmul <4 x double> %v81, %v85
  %v87 = sub <4 x i64> %v63, %v82
  %v88 = add <4 x i64> %v87, splat (i64 1023)
  %v89 = shl <4 x i64> %v88, splat (i64 52)
  %v90 = bitcast <4 x i64> %v89 to <4 x double>
  %v91 = fmul <4 x double> %v86, %v90
  %v92 = fcmp ogt <4 x double> %x1, splat (double 0x0000000000000000)
  %v93 = fcmp oeq <4 x double> %x0, splat (double 0x7FF0000000000000)
  %v94 = and <4 x i1> %v93, %v92
  %v95 = fcmp oeq <4 x double> %x0, splat (double 0x0000000000000000)
  %v96 = or <4 x i1> %v95, %v93
  %v97 = select <4 x i1> %v96, <4 x double> splat (double 0x0000000000000000), <4 x double> %v91
  %v98 = fcmp olt <4 x double> %x1, splat (double 0x0000000000000000)
  %v99 = and <4 x i1> %v95, %v98
  %v100 = or <4 x i1> %v94, %v99
  %v101 = select <4 x i1> %v100, <4 x double> splat (double 0x7FF0000000000000), <4 x double> %v97
  %v102 = call <4 x double> @llvm.fabs.v4f64(<4 x double> %x1)
  %v103 = fcmp oeq <4 x double> %v102, splat (double 0x7FF0000000000000)
  %v104 = fcmp olt <4 x double> %x0, splat (double 0x3FF0000000000000)
  %v105 = xor <4 x i1> %v104, %v92
  %v106 = select <4 x i1> %v105, <4 x double> splat (double 0x7FF0000000000000), <4 x double> splat (double 0x0000000000000000)
  %v107 = select <4 x i1> %v103, <4 x double> %v106, <4 x double> %v101
  %v108 = fcmp uno <4 x double> %x0, %x1
  %v109 = fadd <4 x double> %x0, %x1
  %v110 = select <4 x i1> %v108, <4 x double> %v109, <4 x double> %v107
  %v111 = fcmp oeq <4 x double> %x0, splat (double 0x3FF0000000000000)
  %v112 = fcmp oeq <4 x double> %x1, splat (double 0x0000000000000000)
  %v113 = or <4 x i1> %v111, %v112
  %v114 = select <4 x i1> %v113, <4 x double> splat (double 0x3FF0000000000000), <4 x double> %v110
  ret <4 x double> %v114
}

define internal <4 x double> @km_pow_normal_v4f64(<4 x double> %x0, <4 x double> %x1) alwaysinline {
entry:
  %v1 = bitcast <4 x double> %x0 to <4 x i64>
  %v2 = bitcast <4 x double> splat (double 0x3FE6A09E667F3BCD) to <4 x i64>
  %v3 = sub <4 x i64> %v1, %v2
  %v4 = ashr <4 x i64> %v3, splat (i64 52)
  %v5 = shl <4 x i64> %v4, splat (i64 52)
  %v6 = sub <4 x i64> %v1, %v5
  %v7 = bitcast <4 x i64> %v6 to <4 x double>
  %v8 = sitofp <4 x i64> %v4 to <4 x double>
  %v9 = fsub <4 x double> %v7, splat (double 0x3FF0000000000000)
  %v10 = fadd <4 x double> %v9, splat (double 0x4000000000000000)
  %v11 = fdiv <4 x double> %v9, %v10
  %v12 = fmul <4 x double> %v11, %v11
  %v13 = fmul <4 x double> %v12, splat (double 0x4000000000000000)
  %v14 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3FB0C03CC5BC65F5), <4 x double> %v12, <4 x double> splat (double 0x3FB0FBE913E56768))
  %v15 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v14, <4 x double> %v12, <4 x double> splat (double 0x3FB3B1C35868035B))
  %v16 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v15, <4 x double> %v12, <4 x double> splat (double 0x3FB745CF903BF098))
  %v17 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v16, <4 x double> %v12, <4 x double> splat (double 0x3FBC71C72015B06F))
  %v18 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v17, <4 x double> %v12, <4 x double> splat (double 0x3FC2492492476CBA))
  %v19 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v18, <4 x double> %v12, <4 x double> splat (double 0x3FC9999999999A38))
  %v20 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v19, <4 x double> %v12, <4 x double> splat (double 0x3FD5555555555555))
  %v21 = fmul <4 x double> %v13, %v20
  %v22 = fmul <4 x double> %v9, %v9
  %v23 = fmul <4 x double> %v22, splat (double 0x3FE0000000000000)
  %v24 = fadd <4 x double> %v23, %v21
  %v25 = fmul <4 x double> %v11, %v24
  %v26 = fsub <4 x double> %v23, %v25
  %v27 = fsub <4 x double> %v9, %v26
  %v28 = fmul <4 x double> %v27, splat (double 0x3FF71547652B82FE)
  %v29 = fmul <4 x double> %x1, %v28
  %v30 = call <4 x double> @llvm.fma.v4f64(<4 x double> %x1, <4 x double> %v8, <4 x double> %v29)
  %v31 = fadd <4 x double> %v30, splat (double 0x4338000000000000)
  %v32 = fsub <4 x double> %v31, splat (double 0x4338000000000000)
  %v33 = fneg <4 x double> %v32
  %v34 = call <4 x double> @llvm.fma.v4f64(<4 x double> %x1, <4 x double> %v8, <4 x double> %v33)
  %v35 = fadd <4 x double> %v34, %v29
  %v36 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3FCEBFBDFF82C58F), <4 x double> %v35, <4 x double> splat (double 0x3FE62E42FEFA39EF))
  %v37 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3F83B2AB6FBA4E79), <4 x double> %v35, <4 x double> splat (double 0x3FAC6B08D704A0C6))
  %v38 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3F2430912F86B7D4), <4 x double> %v35, <4 x double> splat (double 0x3F55D87FE78A3F8C))
  %v39 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3EB62C02242BB0BD), <4 x double> %v35, <4 x double> splat (double 0x3EEFFCBFC6DAD6AD))
  %v40 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3E3E4CF10D1896BE), <4 x double> %v35, <4 x double> splat (double 0x3E7B524EBC089F66))
  %v41 = call <4 x double> @llvm.fma.v4f64(<4 x double> splat (double 0x3DBC4A2AAA2B01D9), <4 x double> %v35, <4 x double> splat (double 0x3DFE9EC3D7558475))
  %v42 = fmul <4 x double> %v35, %v35
  %v43 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v37, <4 x double> %v42, <4 x double> %v36)
  %v44 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v39, <4 x double> %v42, <4 x double> %v38)
  %v45 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v41, <4 x double> %v42, <4 x double> %v40)
  %v46 = fmul <4 x double> %v42, %v42
  %v47 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v44, <4 x double> %v46, <4 x double> %v43)
  %v48 = fmul <4 x double> %v46, %v46
  %v49 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v45, <4 x double> %v48, <4 x double> %v47)
  %v50 = call <4 x double> @llvm.fma.v4f64(<4 x double> %v35, <4 x double> %v49, <4 x double> splat (double 0x3FF0000000000000))
  %v51 = bitcast <4 x double> %v50 to <4 x i64>
  %v52 = bitcast <4 x double> %v31 to <4 x i64>
  %v53 = shl <4 x i64> %v52, splat (i64 52)
  %v54 = add <4 x i64> %v51, %v53
  %v55 = bitcast <4 x i64> %v54 to <4 x double>
  ret <4 x double> %v55
}

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.disable"}
!2 = distinct !{!2, !1}
!3 = distinct !{!3, !4}
!4 = !{!"llvm.loop.unroll.count", i32 8}
